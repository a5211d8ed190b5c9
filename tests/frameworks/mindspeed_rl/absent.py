"""Names for what MindSpeed-RL imports and is not here: torch_npu, vLLM, MindSpeed, verifiers.

Such a package has any module, and a module any name: a class that does nothing. None of it is
called by what the tests run, but for the few functions that `install` gives a meaning.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

PACKAGES = frozenset(
    {
        *("vllm", "vllm_ascend", "torch_npu", "acl", "mindspeed", "mindspeed_llm", "mindspore"),
        *("torchvision", "av", "qwen_vl_utils", "loguru", "nltk", "swanlab"),
        *("latex2sympy2", "math_verify", "mathruler", "word2number"),
    }
)


class _Named(type):
    """A class whose every attribute is the class itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Absent(metaclass=_Named):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take anything."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else None  # as a decorator


class _Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Named(name, (_Absent,), {})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        known = name.partition(".")[0] in PACKAGES
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is."""


def install() -> None:
    """Make the packages importable, and torch know an NPU that is the CPU."""
    sys.meta_path.insert(0, _Finder())
    import torch_npu

    ranges = SimpleNamespace(
        range_start=lambda *args, **kwargs: 0, range_end=lambda *args, **kwargs: None
    )
    device = SimpleNamespace(
        mstx=ranges, manual_seed_all=lambda seed: None, is_available=lambda: False
    )
    torch_npu.npu = device
    framework: Any = torch
    framework.npu = device
    tensor: Any = torch.Tensor
    tensor.npu = lambda self, *args, **kwargs: self
    framework.cuda.empty_cache = lambda: None
    framework.cuda.LongTensor = torch.LongTensor
