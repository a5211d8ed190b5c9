"""Do two runs' responses to the same prompts come from one distribution? A permutation test.

Given the prompt, responses that one model samples are exchangeable between two runs of it, so
swapping their labels must not change the difference of means more than chance does. That is exact
for any distribution and any sample size. Responses to one prompt are exchangeable one by one only
if they are drawn independently; where groups of both runs repeat themselves (greedy decoding),
whole groups are swapped instead.

Source: Fisher's stratified randomisation test; p = (1 + hits) / (1 + draws), Phipson and Smyth
2010. The variance of a difference of means under relabelling is S^2 (1/n_a + 1/n_b), with S^2 the
pooled sample variance of the stratum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.threshold import Threshold

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

FAMILY = Threshold(
    1e-3,
    source="chance of one false alarm in a whole comparison, shared out by Bonferroni among tests",
)
NUM_DRAWS = 49_999
_MAX_DRAWN = 2048  # units; above, the normal limit of so large a sample is as good and instant
_SCREEN_Z = 3.0  # below, no test of the family reaches its level, so nothing is drawn
_CHUNK = 256


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Exchangeable values: responses, or means of groups that repeat themselves.

    Args:
        value: float64 [n], finite.
        stratum: int64 [n], from 0; only units of one stratum (prompt of a step) are swapped.
        is_candidate: bool [n].
    """

    value: Float64
    stratum: Int64
    is_candidate: Bool

    def take(self, which: Bool) -> Units:
        """Return some of the units."""
        return Units(self.value[which], self.stratum[which], self.is_candidate[which])


@dataclass(frozen=True, slots=True)
class Shift:
    """Difference of means, candidate minus reference, averaged over strata.

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


def shifts(units: Units, family: Int64) -> tuple[Shift | None, ...]:
    """Measure the shift of each family of strata; None for one without a stratum of both sides.

    Args:
        units: of all families.
        family: int64 [num_strata], the family (step) each stratum belongs to, from 0.
    """
    num_strata = len(family)
    sizes, means = [], []
    for side in (~units.is_candidate, units.is_candidate):
        size = np.bincount(units.stratum[side], minlength=num_strata)
        total = np.bincount(units.stratum[side], units.value[side], minlength=num_strata)
        sizes.append(size)
        means.append(total / np.maximum(1, size))
    paired = (sizes[0] > 0) & (sizes[1] > 0)
    size = np.maximum(2, sizes[0] + sizes[1])
    pooled = (sizes[0] * means[0] + sizes[1] * means[1]) / size
    squares = (units.value - pooled[units.stratum]) ** 2
    s2 = np.bincount(units.stratum, squares, minlength=num_strata) / (size - 1)
    variance = s2 * (1 / np.maximum(1, sizes[0]) + 1 / np.maximum(1, sizes[1]))
    count = np.bincount(family[paired])
    difference = np.bincount(family[paired], (means[1] - means[0])[paired])
    spread = np.sqrt(np.bincount(family[paired], variance[paired]))
    measured = [
        Shift(float(d / n), float(s / n), int(n)) if n else None
        for d, s, n in zip(difference, spread, count, strict=True)
    ]
    num_families = int(family.max(initial=-1)) + 1
    return (*measured, *[None] * (num_families - len(measured)))


def is_beyond_chance(units: Units, shift: Shift, level: float) -> bool:
    """Decide one test at ``level``: screen by the normal limit, then draw permutations.

    Draws come from a fixed seed, so a report of the same input is the same.
    """
    if abs(shift.z) < _SCREEN_Z:
        return False
    p = permutation_p(units) if len(units.value) <= _MAX_DRAWN else shift.p_normal
    return p <= level


def permutation_p(units: Units) -> float:
    """Return the two-sided p of the observed shift among drawn relabellings within strata."""
    units = _paired(units)
    if not len(units.value):
        return 1.0
    contrast = _contrast(units)
    observed = abs(float(units.value @ contrast))
    rng = np.random.default_rng(0)
    hits = 0
    for start in range(0, NUM_DRAWS, _CHUNK):
        num = min(_CHUNK, NUM_DRAWS - start)
        # Random keys inside a stratum's own unit interval: sorting shuffles within strata only.
        keys = rng.random((num, len(units.value))) + units.stratum
        drawn = units.value[np.argsort(keys, axis=1)] @ contrast
        hits += int((np.abs(drawn) >= observed * (1 - 1e-12)).sum())
    return (1 + hits) / (1 + NUM_DRAWS)


def _paired(units: Units) -> Units:
    """Keep strata of both sides, numbered from 0, sorted by stratum."""
    of_both = np.intersect1d(units.stratum[units.is_candidate], units.stratum[~units.is_candidate])
    units = units.take(np.isin(units.stratum, of_both))
    order = np.argsort(units.stratum, kind="stable")
    stratum = np.unique(units.stratum[order], return_inverse=True)[1]
    return Units(units.value[order], stratum, units.is_candidate[order])


def _contrast(units: Units) -> Float64:
    """Return the weights that make ``value @ weights`` the mean difference over strata."""
    num_candidate = np.bincount(units.stratum, units.is_candidate)
    num_reference = np.bincount(units.stratum) - num_candidate
    weights: Float64 = np.where(
        units.is_candidate,
        1 / num_candidate[units.stratum],
        -1 / num_reference[units.stratum],
    )
    return weights / len(num_candidate)
