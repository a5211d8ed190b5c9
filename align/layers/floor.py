"""How large a relative error rounding alone makes, as a documented model."""

from __future__ import annotations

import math
import re

from align.core.threshold import Threshold
from dumps.store.tensor_records import TensorRecord

UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""Largest relative error of rounding a number to each type."""

ACCUMULATED = UNIT_ROUNDOFF["float32"]
SKETCH = 1e-6
"""Error of a sketch itself, which is a float32 product over all tokens and features."""

CONFIDENCE = 4.0
GROWTH = Threshold(
    8.0,
    "twice the largest growth of an error within one operation on the zoo's clean pairs (3.5 with "
    "an all-reduce in bfloat16)",
)
"""How many times as large an operation may make the relative error of what it works on."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)")


def unit_roundoff(*records: TensorRecord) -> float:
    """Return the unit roundoff of the coarsest dtype among some records."""
    return max(UNIT_ROUNDOFF.get(record.dtype, ACCUMULATED) for record in records)


def rounding_floor(
    reference: TensorRecord, candidate: TensorRecord, depth: int, terms: int
) -> Threshold:
    """Return the relative error up to which two tensors count as equal.

    Args:
        depth: layers between the first input and these tensors, from 1.
        terms: length of the sum behind one element.

    Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SISC 2019:
    the error of n accumulated roundings is at most λ u sqrt(n) with high probability; λ = 4 here.
    """
    unit = unit_roundoff(reference, candidate)
    each = unit + ACCUMULATED * math.sqrt(max(1, terms))
    value = CONFIDENCE * each * math.sqrt(max(1, depth)) + SKETCH
    coarsest = max(
        (reference.dtype, candidate.dtype), key=lambda name: UNIT_ROUNDOFF.get(name, ACCUMULATED)
    )
    return Threshold(value, f"4 u sqrt(depth) of {coarsest}, depth {depth}, sums of {terms} terms")


def layer_of(name: str) -> int | None:
    """Return the number of the decoder layer a module or parameter belongs to."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def num_layers(names: list[str]) -> int:
    """Return how many layers some names tell of."""
    return 1 + max((layer for name in names if (layer := layer_of(name)) is not None), default=0)
