"""How far statistics, or whole tensors, of two msprobe dumps may be apart by rounding alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from align.core.threshold import Threshold
from align.layers.floor import ACCUMULATED, CONFIDENCE, UNIT_ROUNDOFF
from dumps.readers.msprobe import DumpedTensor

_SPREAD = Threshold(
    4.0, "the largest of a few statistics of independent errors stays below four of their sizes"
)
"""How far a single number, or a sum, may go beyond the error of a typical one."""


def tensor_floor(one: DumpedTensor, other: DumpedTensor, depth: int, terms: int) -> Threshold:
    """Return the relative error up to which two tensors count as equal.

    Args:
        depth: layers between the first input and these tensors, from 1.
        terms: length of the longest sum behind one element.

    Source: Higham and Mary, SISC 2019, as `align.layers.floor.rounding_floor`; nothing is added
    for a sketch here.
    """
    unit = unit_of(one, other)
    each = unit + ACCUMULATED * math.sqrt(max(1, terms))
    coarsest = max(one.dtype, other.dtype, key=lambda name: UNIT_ROUNDOFF.get(name, 0.0))
    return Threshold(
        CONFIDENCE * each * math.sqrt(max(1, depth)),
        f"4 u sqrt(depth) of {coarsest}, depth {depth}, sums of {terms} terms",
    )


def unit_of(*tensors: DumpedTensor) -> float:
    """Return the unit roundoff of the coarsest dtype."""
    return max(UNIT_ROUNDOFF.get(tensor.dtype, ACCUMULATED) for tensor in tensors)


@dataclass(frozen=True, slots=True)
class StatisticsDifference:
    """What statistics show of the relative error of two tensors.

    Args:
        relative: an estimate of ‖b - a‖ / ‖a‖: the largest of the estimates each statistic gives.
        statistic: which gave it.
        gain: ratio of the norms.
    """

    relative: float
    statistic: str = ""
    gain: float = math.nan


def statistics_difference(
    reference: DumpedTensor, candidate: DumpedTensor
) -> StatisticsDifference | None:
    """Estimate the relative error of two tensors from their statistics.

    The norms' difference, and sqrt(n) times the means', are lower bounds of it (triangle and
    Cauchy-Schwarz inequality). One extreme number is a sample of an element's error, so its
    difference is set against its own size and the root mean square. What rounding does to a
    statistic itself is taken off; msprobe computes it in the tensor's own dtype.

    Returns:
        None where no statistic is recorded on both sides.
    """
    extremes = (reference.maximum, candidate.maximum), (reference.minimum, candidate.minimum)
    if all(None in pair for pair in extremes):
        return None
    nonfinite = [_is_finite(tensor) for tensor in (reference, candidate)]
    if not all(nonfinite):
        return StatisticsDifference(0.0 if nonfinite[0] == nonfinite[1] else math.inf, "NaN")
    if reference.norm is None or candidate.norm is None:
        same = all(pair[0] == pair[1] for pair in extremes)
        return StatisticsDifference(0.0 if same else math.inf, "max, min")
    found = list(_estimates(reference, candidate))
    name, largest = max(found, key=lambda item: item[1])
    gain = candidate.norm / reference.norm if reference.norm else math.nan
    return StatisticsDifference(largest, name, gain)


def _is_finite(tensor: DumpedTensor) -> bool:
    """Tell by the extremes: a norm in float16 overflows where every number is finite."""
    return all(v is None or math.isfinite(v) for v in (tensor.maximum, tensor.minimum))


def _estimates(one: DumpedTensor, other: DumpedTensor) -> list[tuple[str, float]]:
    count = max(1, math.prod(one.shape))
    norms = _both(one.norm, other.norm)
    means, unit = _both(one.mean, other.mean), unit_of(one, other)
    size = norms[0] if norms and norms[0] else 0.0
    typical = size / math.sqrt(count)
    found = [("max, min", 0.0)]
    if norms is not None:
        found.append(("L2", _relative(norms, size, _SPREAD.value * unit * size)))
    if means is not None:
        # rounding of a sum of n: unit times the mean, and unit times the root of n's logarithm
        own = unit * (abs(means[0]) + typical * math.sqrt(math.log2(count + 1) / count))
        scale = typical / math.sqrt(count)
        found.append(("mean", _relative(means, scale, _SPREAD.value * own) / _SPREAD.value))
    for name, pair in (
        ("max", _both(one.maximum, other.maximum)),
        ("min", _extreme_min(one, other)),
    ):
        if pair is not None:
            found.append((name, _relative(pair, abs(pair[0]) + typical, 0.0) / _SPREAD.value))
    return found


def _extreme_min(one: DumpedTensor, other: DumpedTensor) -> tuple[float, float] | None:
    return _both(one.minimum, other.minimum)


def _both(one: float | None, other: float | None) -> tuple[float, float] | None:
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
        return None
    return one, other


def _relative(pair: tuple[float, float], scale: float, rounding: float) -> float:
    beyond = max(0.0, abs(pair[1] - pair[0]) - rounding)
    return 0.0 if beyond == 0 else beyond / scale if scale else math.inf
