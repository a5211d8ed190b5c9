"""From which step on two curves are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.core.threshold import Threshold
from align.curves.change import change_point
from align.curves.noise import error_of_average, scatter
from align.curves.pair import FloatArray, PairedMetric
from align.curves.smooth import MIN_WINDOW, counts, smooth, window_for

NOISE_BAND = Threshold(3.0, source="Shewhart control limits: 3 standard errors of the average")

LEAST_SHARE = Threshold(0.1, source="a window of 21 shows a tenth of a jump 8 steps ahead of it")


@dataclass(frozen=True, slots=True)
class Onset:
    """First step at which a smoothed difference is out of the noise.

    Args:
        step: in the reference's numbering.
        uncertainty: how many steps later the curves can really have parted: a centred average
            shows a large change half its window before it happens.
    """

    step: int
    uncertainty: int


def onset_of(metric: PairedMetric, sign: float, earlier: float = 0.0) -> Onset:
    """Return the step from which the smoothed difference is out of the noise band for good.

    In the metric's own unit: early values near 0 have wild ratios. ``sign`` is the direction in
    which the curves part, ``earlier`` their difference before. The band is 3 standard errors of the
    smoothed difference, from the steps before it changes, and a tenth of the change at least.

    Measured on steps of 8 and 25 standard deviations in AR(1) noise, 200 seeds each: of 100 onsets
    ACCURACY
    """
    difference = sign * (metric.candidate - metric.reference - earlier)
    window = window_for(len(difference))
    average = smooth(difference, window)
    # The last window may touch 0 by chance: that is not a return.
    at_zero = np.flatnonzero(average[:-window] <= 0)
    after = int(at_zero[-1]) + 1 if len(at_zero) else 0
    out = np.flatnonzero((average > _band(difference, window))[after:])
    at = after + (int(out[0]) if len(out) else 0)
    latest = min(at + window // 2, len(metric) - 1)
    return Onset(int(metric.steps[at]), int(metric.steps[latest] - metric.steps[at]))


def _band(difference: FloatArray, window: int) -> FloatArray:
    covered = counts(len(difference), window).astype(np.int64)
    at = change_point(difference)
    before = difference[:at]
    if len(before) < 2 * MIN_WINDOW:
        return NOISE_BAND.value * scatter(difference) / np.sqrt(covered)
    errors = {num: error_of_average(before, num) for num in np.unique(covered).tolist()}
    band = NOISE_BAND.value * np.array([errors[num] for num in covered.tolist()])
    return np.maximum(band, LEAST_SHARE.value * abs(float(difference[at:].mean())))
