"""One check a module: ``check(run) -> Iterator[Finding]`` and examples ``FIRES`` and ``SILENT``.

The id of a finding is ``lint.`` and the module's name, with a further part where one check finds
several things. An ERROR is what breaks a run or changes its results whatever else is set.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def checks() -> tuple[ModuleType, ...]:
    """Return all checks in order of name; one that fails to import is an error."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return tuple(import_module(f"{__name__}.{name}") for name in names)
