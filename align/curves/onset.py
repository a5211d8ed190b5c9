"""From which step on two curves are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.change import change_point
from align.curves.noise import error_of_average, scatter
from align.curves.pair import FloatArray, PairedMetric
from align.curves.smooth import MIN_WINDOW, counts, smooth, window_for

NOISE_BAND = Threshold(3.0, source="Shewhart control limits: 3 standard errors of the average")
LEAST_SHARE = Threshold(0.1, source="a window of 21 shows a tenth of a jump 8 steps ahead of it")


@dataclass(frozen=True, slots=True)
class Onset:
    """First step at which two curves are apart.

    Args:
        step: in the reference's numbering.
        uncertainty: how many steps later they can really have parted: a centred average shows a
            change half its window ahead. 0 where the recorded values themselves jump at ``step``.
    """

    step: int
    uncertainty: int

    @property
    def words(self) -> Text:
        """Say from which step on."""
        if self.uncertainty:
            return Text(f"from about step {self.step} on", f"约从第 {self.step} 步起")
        return Text(f"from step {self.step} on", f"从第 {self.step} 步起")


def onset_of(
    metric: PairedMetric, sign: float, earlier: float = 0.0, *, num_windows: int = 1
) -> Onset:
    """Return the step from which the smoothed difference is out of the noise band for good.

    In the metric's own unit: early values near 0 have wild ratios. ``sign`` is the direction in
    which the curves part, ``earlier`` their difference before, ``num_windows`` how many usual
    windows are averaged over: more miss a short return to 0. The band is 3 standard errors of the
    smoothed difference, from the steps before it changes, and a tenth of the change at least.

    Measured on jumps of 8 standard deviations in AR(1) noise, 200 seeds each: at 500 steps 97 of
    100 onsets are the very step and 3 at most lie before it (92 and 2 at autocorrelation 0.8); at
    40 and 58 steps 93 and 2, and 83 and 8 at autocorrelation 0.8.
    """
    difference = sign * (metric.candidate - metric.reference - earlier)
    noise = _Noise.of(difference)
    window = num_windows * window_for(len(difference))
    average = smooth(difference, window)
    # The last window may touch 0 by chance: that is not a return.
    at_zero = np.flatnonzero(average[:-window] <= 0)
    after = int(at_zero[-1]) + 1 if len(at_zero) else 0
    out = np.flatnonzero((average > noise.band(counts(len(average), window)))[after:])
    first = after + (int(out[0]) if len(out) else 0)
    ahead = difference[first : first + window // 2 + 1]
    begin, end = noise.jump(ahead)
    steps = metric.steps[first : first + len(ahead)]
    return Onset(int(steps[begin]), int(steps[end] - steps[begin]))


@dataclass(frozen=True, slots=True)
class _Noise:
    """What the difference of two curves did before it changed, and how much it changed."""

    before: FloatArray
    scatter: float
    level: float  # since the change

    @classmethod
    def of(cls, difference: FloatArray) -> _Noise:
        at = change_point(difference)
        level = abs(float(difference[at:].mean()))
        return cls(difference[:at], scatter(difference), level)

    def limit(self, num: int) -> float:
        """Return 3 standard errors of the average of ``num`` steps."""
        known = len(self.before) >= 2 * MIN_WINDOW
        error = error_of_average(self.before, num) if known else self.scatter / math.sqrt(num)
        return NOISE_BAND.value * error

    def band(self, covered: FloatArray) -> FloatArray:
        """Return the band [n] of averages over so many steps."""
        limits = {num: self.limit(int(num)) for num in np.unique(covered).tolist()}
        least = LEAST_SHARE.value * self.level
        return np.array([max(limits[num], least) for num in covered.tolist()])

    def jump(self, ahead: FloatArray) -> tuple[int, int]:
        """Return between which of half a window of steps [n] the change began.

        It is one step where a single value is half-way to the new level and beyond noise, and the
        ones before it are, on average, as they were.
        """
        reached = np.flatnonzero(ahead > max(self.limit(1), self.level / 2))
        if not len(reached):
            return 0, len(ahead) - 1
        at = int(reached[0])
        quiet = at == 0 or float(ahead[:at].mean()) <= self.limit(at)
        return at if quiet else 0, at
