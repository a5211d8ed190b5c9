"""The common schema: every quantity both frameworks can set, in one vocabulary and unit."""

from __future__ import annotations

from functools import cache

from align.config.schema import (
    batching,
    data,
    derived,
    model,
    objective,
    optimizer,
    parallel,
    rollout,
)
from align.config.schema.field import Field, ValueKind

__all__ = ["FIELDS", "Field", "ValueKind", "field_named"]

FIELDS: dict[str, Field] = {
    field.name: field
    for group in (model, data, rollout, objective, batching, optimizer, parallel, derived)
    for field in group.FIELDS
}


@cache
def field_named(name: str) -> Field:
    """Return the field, or the family it belongs to.

    Raises:
        KeyError: Neither is in the schema.
    """
    if name in FIELDS:
        return FIELDS[name]
    family = name
    while "." in family:
        family = family.rpartition(".")[0]
        if f"{family}.*" in FIELDS:
            return FIELDS[f"{family}.*"]
    raise KeyError(name)
