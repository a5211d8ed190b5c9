"""Every framework in this folder, found by importing it; a file that fails to import is an error.

A framework is a module with ``NAME``. Which tables it must and may have says `vocabulary.py` for
metrics; other stages read their own tables from the same module.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType

import align.frameworks


@cache
def frameworks() -> Mapping[str, ModuleType]:
    """Return the modules that describe a framework, by ``NAME``, in order of name."""
    names = sorted(info.name for info in pkgutil.iter_modules(align.frameworks.__path__))
    modules = (import_module(f"align.frameworks.{name}") for name in names)
    return MappingProxyType({module.NAME: module for module in modules if hasattr(module, "NAME")})
