"""Where a capture looks on in the bundled stack, which records most of it by itself."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_PACKAGE = "npu-align"
_TRAIN = "align.stack.train"


HOOKS = (
    HookPoint(_TRAIN, "train", "stack:train", _PACKAGE, (0, 0), "configuration, versions"),
    HookPoint(_TRAIN, "train_step", "stack:step", _PACKAGE, (0, 0), "a step, all of it"),
)
