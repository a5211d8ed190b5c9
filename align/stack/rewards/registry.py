"""Every rule in this folder, found by importing it; a file that fails to import is an error."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from align.stack.rewards.rule import Rule


@cache
def rules() -> Mapping[str, Rule]:
    """Return the rules by name, in alphabetical order."""
    package = import_module("align.stack.rewards")
    modules = (
        import_module(f"{package.__name__}.{info.name}")
        for info in pkgutil.iter_modules(package.__path__)
    )
    found = [module.RULE for module in modules if hasattr(module, "RULE")]
    return {rule.name: rule for rule in sorted(found, key=lambda rule: rule.name)}
