"""One derived value: what it is made from, and how it says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.core.text import joined
from align.frameworks import config_table

Values = Mapping[str, EffectiveValue]


def number(values: Values, name: str) -> float | None:
    """Return a field as a finite number, None where it is none or not known."""
    found = config_table.number(values[name].value) if name in values else None
    return found if found is not None and math.isfinite(found) else None


def numbers(values: Values, names: Iterable[str]) -> list[float] | None:
    """Return several fields as numbers, None where one of them is not known."""
    found = [number(values, name) for name in names]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def value_of(values: Values, name: str) -> ConfigLeaf:
    """Return a field's value, None where it is not known."""
    return values[name].value if name in values else None


def exact(value: float) -> int | float:
    """Return a whole number as one."""
    return int(value) if float(value).is_integer() else value


def derived(
    field: str, result: ConfigLeaf, inputs: Sequence[str], formula: str, values: Values
) -> EffectiveValue:
    """Make the value of a derived field.

    Args:
        inputs: fields it is made from; those that are not known are left out.
        formula: as a reader should see it.
    """
    used = [values[name] for name in inputs if name in values]
    raw = ConfigValue(
        ", ".join(dict.fromkeys(value.raw.key for value in used)),
        tuple(value.value for value in used),
        Provenance(ProvenanceKind.DERIVED, formula),
    )
    assumptions = dict.fromkeys(v.assumption for v in used if v.assumption)
    return EffectiveValue(field, result, raw, joined(assumptions) if assumptions else None)
