"""Where a capture reaches the workers of a Ray cluster that was there before the command."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

HOOKS = (
    HookPoint(
        "ray",
        "init",
        "ray_workers:init",
        "ray",
        (2, 0),
        "nothing: it hands the capture's environment to every worker",
    ),
)
