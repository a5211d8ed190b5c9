"""Every reader in this folder, found by importing it; a file that fails to import is an error."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

import dumps.readers
from align.core.run import ArtifactKind
from dumps.readers.reader import Reader


@cache
def readers() -> tuple[Reader, ...]:
    """Return all readers, most specific first; before them those whose files have one role."""
    found: list[Reader] = []
    for module_info in pkgutil.iter_modules(dumps.readers.__path__):
        module = import_module(f"dumps.readers.{module_info.name}")
        found += [*getattr(module, "READERS", ()), *filter(None, [getattr(module, "READER", None)])]
    return tuple(sorted(found, key=lambda r: (not r.sole_role, -r.priority, r.format)))


def reader_named(format: str, kind: ArtifactKind) -> Reader:
    """Return the reader of an artifact that discovery made."""
    return next(r for r in readers() if r.format == format and r.kind is kind)
