"""Which way an error points: along the reference (a wrong factor) or along a constant (an offset).

With E = candidate - reference, ‖X + E‖² = ‖X‖² + 2⟨E, X⟩ + ‖E‖², and the two norms are sums over
all elements. So ⟨E, X⟩ is known to the norms' own rounding, with ‖E‖² from the sketches, where it
is of second order. Read off the sketches alone, ⟨S_E, S_X⟩ has a standard error of ‖E‖‖X‖ / 16,
times sqrt((1 + 15 / rows)(1 + 15 / features)) for small tensors: 16 x 16 products are kept. The
cosine between an error of independent roundings and the reference has a standard error of
1 / sqrt(elements) instead, so a factor shows that is far smaller than the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from align.layers.floor import unit_roundoff
from dumps.store.tensor_records import TensorRecord


class Direction(Enum):
    """What an error is regressed on."""

    GAIN = "gain"
    OFFSET = "offset"


OWN_ERROR = 5e-6
"""Relative error of a float32 norm or total over millions of elements, and room for two."""

_PART_OF_ROUNDING = 1 / 8  # the largest on clean pairs of one rounding: 1 / 18


@dataclass(frozen=True, slots=True)
class Along:
    """One coefficient of an error.

    Args:
        size: the factor less 1; or the mean error over the reference's root mean square.
        share: cosine between the error and the direction, from -1 to 1.
    """

    size: float
    share: float


def along(
    reference: TensorRecord, candidate: TensorRecord, relative: float, direction: Direction
) -> Along | None:
    """Regress an error on a direction; None where there is no error or no finite reference.

    Args:
        relative: ‖candidate - reference‖ / ‖reference‖, from sketches.
    """
    if not (0 < relative < math.inf) or not reference.l2 or not reference.num_elements:
        return None
    if direction is Direction.GAIN:
        size = ((candidate.l2 / reference.l2) ** 2 - 1 - relative**2) / 2
    else:
        added = candidate.total - reference.total
        size = added / (reference.l2 * math.sqrt(reference.num_elements))
    return Along(size, max(-1.0, min(1.0, size / relative))) if math.isfinite(size) else None


def least(reference: TensorRecord, candidate: TensorRecord) -> float:
    """Return the smallest factor or offset worth a word: far below one rounding."""
    return max(OWN_ERROR, _PART_OF_ROUNDING * unit_roundoff(reference, candidate))
