"""Whether two runs saw the same rows, judged by their prompt length statistics per step.

Equal means, maxima and minima at every step are strong evidence, but no proof, that the rows are
the same; they are none at all where every step of a data set gives the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.metric import MetricLog, MetricSeries

METRICS = ("prompt_length/mean", "prompt_length/max", "prompt_length/min")
# Both frameworks compute the mean in float32 and add in another order.
_FLOAT32_REL = 2.0**-22

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PromptLengths:
    """One metric at the steps both runs have.

    ``resolution`` [n] is the largest difference that printing and float32 alone can make.
    """

    reference: MetricSeries
    candidate: MetricSeries
    steps: npt.NDArray[np.int64]
    reference_at: npt.NDArray[np.int64]  # positions of ``steps`` in the series
    candidate_at: npt.NDArray[np.int64]

    @property
    def difference(self) -> Float64:
        """Candidate minus reference, in tokens."""
        values: Float64 = (
            self.candidate.values[self.candidate_at] - self.reference.values[self.reference_at]
        )
        return values

    @property
    def resolution(self) -> Float64:
        """See the class."""
        printed = (
            self.reference.resolution[self.reference_at]
            + self.candidate.resolution[self.candidate_at]
        ) / 2
        values: Float64 = printed + _FLOAT32_REL * np.abs(self.reference.values[self.reference_at])
        return values

    @property
    def differs(self) -> npt.NDArray[np.bool_]:
        """Where the values differ beyond their resolution; a NaN equals only a NaN."""
        difference = self.difference
        both_nan = np.isnan(self.reference.values[self.reference_at]) & np.isnan(
            self.candidate.values[self.candidate_at]
        )
        equal: npt.NDArray[np.bool_] = (np.abs(difference) <= self.resolution) | both_nan
        return ~equal

    @property
    def is_constant(self) -> bool:
        """Whether every common step shows one and the same value on both sides."""
        values = np.concatenate(
            [
                self.reference.values[self.reference_at],
                self.candidate.values[self.candidate_at],
            ]
        )
        return bool(np.ptp(values) <= self.resolution.max(initial=0.0))

    @property
    def constant_offset(self) -> float | None:
        """The difference where it is the same at every step and not zero, else None."""
        difference = self.difference
        if not len(difference) or not self.differs.all():
            return None
        spread = np.ptp(difference)
        return float(np.median(difference)) if spread <= 2 * self.resolution.max() else None


def compare_lengths(
    reference: MetricLog, candidate: MetricLog, *, shift: int = 0
) -> tuple[PromptLengths, ...]:
    """Pair the prompt length metrics both runs have.

    Args:
        shift: added to the candidate's steps before pairing.
    """
    pairs = []
    for name in METRICS:
        a, b = reference.get(name), candidate.get(name)
        if a is not None and b is not None:
            steps, at_a, at_b = np.intersect1d(a.steps, b.steps + shift, return_indices=True)
            if len(steps):
                pairs.append(PromptLengths(a, b, steps, at_a, at_b))
    return tuple(pairs)


def first_difference(pairs: tuple[PromptLengths, ...]) -> tuple[int, PromptLengths] | None:
    """Return the first step at which any of the metrics differs, and that metric."""
    firsts = [(int(pair.steps[pair.differs][0]), pair) for pair in pairs if pair.differs.any()]
    return min(firsts, key=lambda first: first[0], default=None)
