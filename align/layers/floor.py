"""How large a relative error rounding alone makes, as a documented model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

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


Dtypes = tuple[str, str]
"""Of the reference's record and the candidate's."""


def unit_roundoff(*records: TensorRecord) -> float:
    """Return the unit roundoff of the coarsest dtype among some records."""
    return UNIT_ROUNDOFF.get(coarsest([record.dtype for record in records]), ACCUMULATED)


def coarsest(dtypes: Iterable[str]) -> str:
    """Return the dtype with the fewest digits."""
    return max(dtypes, key=lambda name: UNIT_ROUNDOFF.get(name, ACCUMULATED))


def usual_dtypes(reference: Iterable[TensorRecord], candidate: Iterable[TensorRecord]) -> Dtypes:
    """Return the dtypes that most records of each run have."""
    own, other = (
        Counter(record.dtype for record in records).most_common(1)
        for records in (reference, candidate)
    )
    return (own[0][0] if own else "float32", other[0][0] if other else "float32")


def expected_dtype(reference: TensorRecord, candidate: TensorRecord, usual: Dtypes) -> str:
    """Return the coarsest dtype whose rounding explains an error between two records.

    Where the two runs use other dtypes at this address alone, a coarser one than theirs elsewhere
    explains nothing: it is the difference.
    """
    dtypes = (reference.dtype, candidate.dtype)
    here, elsewhere = coarsest(dtypes), coarsest(usual)
    if dtypes[0] == dtypes[1] or dtypes == usual:
        return here
    return min((here, elsewhere), key=lambda name: UNIT_ROUNDOFF.get(name, ACCUMULATED))


def rounding_floor(dtype: str, depth: int, terms: int) -> Threshold:
    """Return the relative error up to which two tensors count as equal.

    Args:
        dtype: the coarsest that either is rounded to.
        depth: layers between the first input and these tensors, from 1.
        terms: length of the sum behind one element.

    Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SISC 2019:
    the error of n accumulated roundings is at most λ u sqrt(n) with high probability; λ = 4 here.
    """
    each = UNIT_ROUNDOFF.get(dtype, ACCUMULATED) + ACCUMULATED * math.sqrt(max(1, terms))
    value = CONFIDENCE * each * math.sqrt(max(1, depth)) + SKETCH
    return Threshold(
        value, f"model of rounding: 4 u sqrt(depth) of {dtype}, depth {depth}, {terms} terms"
    )


def layer_of(name: str) -> int | None:
    """Return the number of the decoder layer a module or parameter belongs to."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def num_layers(names: list[str]) -> int:
    """Return how many layers some names tell of."""
    return 1 + max((layer for name in names if (layer := layer_of(name)) is not None), default=0)
