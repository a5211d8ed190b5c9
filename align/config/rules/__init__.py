"""What the rest of a configuration says about one difference: one rule a file.

A rule is a module with ``FIELDS`` (names or fnmatch patterns), ``rule(case) -> Ruling | None``,
and its examples ``FIRES`` and ``SILENT``. The folder is the registry; rules are asked in order of
their names and a later ruling adds to an earlier one.
"""

from __future__ import annotations

import pkgutil
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from types import ModuleType

from align.config.case import Case, Ruling


@cache
def rules() -> tuple[ModuleType, ...]:
    """Return all rules in order of name; one that fails to import is an error."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return tuple(import_module(f"{__name__}.{name}") for name in names)


def rulings(case: Case) -> list[Ruling]:
    """Return what every rule that concerns the case's field says."""
    concerned = (r for r in rules() if any(fnmatchcase(case.name, p) for p in r.FIELDS))
    return [ruling for ruling in (rule.rule(case) for rule in concerned) if ruling is not None]
