"""Where a replay takes part in the bundled stack."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

HOOKS = (
    HookPoint(
        "align.stack.train",
        "train_step",
        "stack:step",
        "npu-align",
        (0, 0),
        "responses, row order and what was used",
    ),
)
