"""MindSpeed-RL's own loss and advantage modules, loaded from a checkout without an NPU.

They are read from $MINDSPEED_RL_SRC, a checkout of github.com/Ascend/MindSpeed-RL. Packages are
entered without running their `__init__`, and the modules that need torch_npu, vLLM or Megatron
are replaced by names that are never called.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SOURCE = os.environ.get("MINDSPEED_RL_SRC")
if SOURCE is None:
    pytest.skip("needs a checkout of MindSpeed-RL (set MINDSPEED_RL_SRC)", allow_module_level=True)

PACKAGE = "mindspeed_rl"
_ENTERED = (
    *("", ".datasets", ".utils", ".models", ".models.loss"),
    *(".trainer", ".trainer.utils", ".workers"),
)
_REPLACED = (
    "ray",
    "mindspeed_rl.utils.utils",
    "mindspeed_rl.utils.pad_process",
    "mindspeed_rl.utils.remove_padding",
    "mindspeed_rl.utils.loggers",
    "mindspeed_rl.trainer.utils.transfer_dock",
    "mindspeed_rl.models.loss.base_loss_func",
)


class _Unused(ModuleType):
    """Has every name; a decorator or base class taken from it changes nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object if name[0].isupper() and name != "Loggers" else lambda x=None, *_, **__: x


def load(*names: str) -> list[ModuleType]:
    """Import modules of the checkout, leaving sys.modules as it was."""
    before = dict(sys.modules)
    try:
        for name in _REPLACED:
            sys.modules[name] = _Unused(name)
        for part in _ENTERED:
            package = ModuleType(PACKAGE + part)
            package.__path__ = [str(Path(SOURCE or "", PACKAGE + part.replace(".", "/")))]
            sys.modules[package.__name__] = package
        return [importlib.import_module(f"{PACKAGE}.{name}") for name in names]
    finally:
        for name in set(sys.modules) - set(before):
            if name.split(".")[0] == PACKAGE or name in _REPLACED:
                del sys.modules[name]
        sys.modules.update(before)
