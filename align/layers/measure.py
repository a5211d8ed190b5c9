"""How far two tensors are apart, from their sketches alone.

The estimates hold within ±10 % for differences spread over many rows and features, and within
±60 % for one row or one feature; 0 only where the tensors are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dumps.store.tensor_records import TensorRecord

if TYPE_CHECKING:
    from dumps.store.tensor_records import Sketch


@dataclass(frozen=True, slots=True)
class Difference:
    """A candidate's tensor against the reference's.

    Args:
        relative: ‖candidate - reference‖ / ‖reference‖; infinite against a zero reference.
        cosine: between the two.
        gain: the factor k for which k · reference is closest to the candidate.
        residual: relative error left after that factor.
    """

    relative: float
    cosine: float
    gain: float
    residual: float


def difference(reference: TensorRecord, candidate: TensorRecord) -> Difference:
    """Compare two records; any NaN or infinity on one side alone is an infinite error."""
    if not (reference.is_finite and candidate.is_finite):
        same = reference.is_finite == candidate.is_finite
        return Difference(0.0 if same else math.inf, math.nan, math.nan, math.nan)
    return between(reference.sketch, candidate.sketch)


def between(reference: Sketch, candidate: Sketch) -> Difference:
    """Compare two sketches."""
    own, other = float(np.linalg.norm(reference)), float(np.linalg.norm(candidate))
    if own == 0 or other == 0:
        relative = 0.0 if own == other else math.inf if own == 0 else 1.0
        return Difference(relative, math.nan, 0.0, relative)
    product = float((reference * candidate).sum())
    gain = product / own**2
    return Difference(
        relative=float(np.linalg.norm(candidate - reference)) / own,
        cosine=product / (own * other),
        gain=gain,
        residual=float(np.linalg.norm(candidate - gain * reference)) / own,
    )


def coefficient(of: Sketch, on: Sketch) -> tuple[float, float]:
    """Regress one sketch on another.

    Returns:
        The factor, and the share of ``of`` that it leaves unexplained, by norm.
    """
    size = float((on * on).sum())
    if size == 0:
        return 0.0, 1.0
    factor = float((of * on).sum()) / size
    whole = float(np.linalg.norm(of))
    return factor, float(np.linalg.norm(of - factor * on)) / whole if whole else 0.0
