"""Every fault of this folder, found by importing it; a file that fails to import is an error."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

import align.stack.faults
from align.core.errors import ConfigError
from align.stack.faults.fault import Fault


@cache
def faults() -> Mapping[str, Fault]:
    """Return all faults by name, in causal order of their rungs."""
    found: list[Fault] = []
    for module_info in pkgutil.iter_modules(align.stack.faults.__path__):
        found += getattr(import_module(f"align.stack.faults.{module_info.name}"), "FAULTS", ())
    found.sort(key=lambda fault: fault.rung.position)
    return {fault.name: fault for fault in found}


def fault_named(name: str) -> Fault:
    """Return one fault.

    Raises:
        ConfigError: There is none of this name; the message gives the nearest ones.
    """
    from difflib import get_close_matches

    known = faults()
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.4)
        raise ConfigError(
            where="--fault",
            key=name,
            problem="no fault has this name",
            fix=f"did you mean {', '.join(near)}? " * bool(near) + "`align demo --list` shows all",
        )
    return known[name]
