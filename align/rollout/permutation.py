"""Do two runs' responses to the same prompts come from one distribution? A permutation test.

Given the prompt, responses that one model samples are exchangeable between two runs of it, so
swapping their labels must not change the difference of means more than chance does. That is exact
for any distribution and any sample size. Responses to one prompt are exchangeable one by one only
if they are drawn independently; where a group repeats itself (greedy decoding), whole groups are
swapped instead.

Source: Fisher's stratified randomisation test; variance of a stratified permutation, Cochran,
Sampling Techniques, section 5; p = (1 + hits) / (1 + draws), Phipson and Smyth 2010.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.threshold import Threshold

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

FAMILY = Threshold(
    1e-3,
    source="chance of one false alarm in a whole comparison, shared out by Bonferroni among tests",
)
NUM_DRAWS = 9999
_MAX_UNITS = 2048  # for drawing; more are thinned out evenly by prompt
_SCREEN_Z = 3.0  # below, no draw can reach the level of a family of one or more tests
_CHUNK = 256


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Exchangeable values: responses, or means of groups that repeat themselves.

    Args:
        value: float64 [n].
        stratum: int64 [n]; only units of one prompt are swapped.
        is_candidate: bool [n].
    """

    value: Float64
    stratum: Int64
    is_candidate: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True, slots=True)
class Shift:
    """Difference of means, candidate minus reference, averaged over prompts.

    ``z`` is the difference in standard deviations of its permutation distribution; 0 where that
    has no spread.
    """

    difference: float
    standard_error: float
    num_strata: int

    @property
    def z(self) -> float:
        """See the class."""
        return self.difference / self.standard_error if self.standard_error > 0 else 0.0

    @property
    def p_normal(self) -> float:
        """Two-sided p of ``z`` under its normal limit."""
        return math.erfc(abs(self.z) / math.sqrt(2))


def measure(units: Units) -> Shift | None:
    """Return the shift and its spread under permutation; None without a prompt on both sides."""
    strata = _Strata.of(units)
    if not len(strata.size):
        return None
    n_a, n_b = strata.size - strata.num_candidate, strata.num_candidate
    variance = strata.variance * (1 / n_a + 1 / n_b)
    weight = strata.weight
    return Shift(
        difference=float(weight @ strata.difference),
        standard_error=float(math.sqrt(weight**2 @ variance)),
        num_strata=len(strata.size),
    )


def is_beyond_chance(units: Units, shift: Shift, level: float) -> bool:
    """Decide one test at ``level``: screen by the normal limit, then draw permutations.

    Draws come from a fixed seed, so a report of the same input is the same.
    """
    if abs(shift.z) < _SCREEN_Z:
        return False
    return permutation_p(units) <= level


def permutation_p(units: Units) -> float:
    """Return the two-sided p of the observed shift among drawn relabellings."""
    strata = _Strata.of(_thinned(units))
    if not len(strata.size):
        return 1.0
    observed = abs(float(strata.weight @ strata.difference))
    rng = np.random.default_rng(0)
    hits = 0
    for start in range(0, NUM_DRAWS, _CHUNK):
        num = min(_CHUNK, NUM_DRAWS - start)
        # Random keys inside a stratum's own unit interval: sorting shuffles within strata only.
        keys = rng.random((num, len(strata.value))) + strata.stratum
        drawn = strata.value[np.argsort(keys, axis=1)] @ strata.contrast
        hits += int((np.abs(drawn) >= observed * (1 - 1e-12)).sum())
    return (1 + hits) / (1 + NUM_DRAWS)


@dataclass(frozen=True, slots=True, eq=False)
class _Strata:
    """Units sorted by stratum, reference first; strata that lack a side are left out."""

    value: Float64
    stratum: Int64
    contrast: Float64  # value @ contrast is the weighted difference of means
    size: Int64
    num_candidate: Int64
    difference: Float64
    variance: Float64  # of the pooled values, with n - 1
    weight: Float64  # of each stratum; sums to one

    @classmethod
    def of(cls, units: Units) -> _Strata:
        _, stratum = np.unique(units.stratum, return_inverse=True)
        total = np.bincount(stratum)
        num_candidate = np.bincount(stratum, units.is_candidate).astype(np.int64)
        both = (num_candidate > 0) & (num_candidate < total)
        keep = both[stratum] & np.isfinite(units.value)
        if not keep.all():
            return cls.of(Units(units.value[keep], units.stratum[keep], units.is_candidate[keep]))
        order = np.lexsort((units.is_candidate, stratum))
        value, stratum = units.value[order], stratum[order]
        candidate = units.is_candidate[order]
        size = np.bincount(stratum).astype(np.int64)
        weight = np.full(len(size), 1 / max(1, len(size)))
        per_unit = np.where(
            candidate, 1 / num_candidate[stratum], -1 / (size - num_candidate)[stratum]
        )
        mean = np.bincount(stratum, value) / size
        squares = np.bincount(stratum, (value - mean[stratum]) ** 2)
        return cls(
            value=value,
            stratum=stratum.astype(np.int64),
            contrast=per_unit * weight[stratum],
            size=size,
            num_candidate=num_candidate,
            difference=np.bincount(stratum, value * per_unit).astype(np.float64),
            variance=squares / np.maximum(1, size - 1),
            weight=weight,
        )


def _thinned(units: Units) -> Units:
    """Leave out whole strata, evenly, until drawing stays cheap."""
    if len(units) <= _MAX_UNITS:
        return units
    strata, inverse = np.unique(units.stratum, return_inverse=True)
    every = -(-len(units) // _MAX_UNITS)
    if len(strata) < 2 * every:
        return units
    keep = inverse % every == 0
    return Units(units.value[keep], units.stratum[keep], units.is_candidate[keep])
