"""A lasting difference of one metric between two runs, measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from align.core.threshold import Threshold
from align.curves.bootstrap import CONFIDENCE
from align.curves.noise import standard_error, t_quantile
from align.curves.onset import NOISE_BAND, Onset
from align.curves.pair import FloatArray, PairedMetric
from align.curves.smooth import MIN_WINDOW, smooth, window_for
from align.frameworks.vocabulary import MetricKind

VISIBLE_EACH_STEP = Threshold(
    3.0, source="Shewhart control limits: a shift of 3 sigma shows in nearly every single step"
)
LARGE_FACTOR = Threshold(
    math.sqrt(2), source="nearer to 2, the smallest scaling mistake, than to 1 on a log scale"
)
SMALL_SHIFT = Threshold(
    0.04, source="the reward curve's own tolerance of 4 %, for lack of one for other metrics"
)


@dataclass(frozen=True, slots=True)
class Shift:
    """A significant difference that lasts to the end.

    Args:
        onset: first step at which the smoothed difference is outside the noise band without
            coming back to 0 later.
        num_last: how many last steps it was measured over: half of them all, or fewer where the
            difference began late.
        reference, candidate: means over these steps.
        relative: candidate - reference over `relative_to` the reference; NaN where that is 0.
        ratio, ratio_low, ratio_high: geometric mean of candidate / reference from the onset on,
            with its 95 % interval; None where the quantity has no ratio.
        constant_ratio: both halves of these steps have the same ratio.
        p: probability of such a mean by chance, adjusted for the metrics tested with it; 1.0 where
            the steps are worth too few independent values to say, and nearly all are far apart.
        large: also large enough for a warning.
    """

    metric: PairedMetric
    onset: Onset
    num_last: int
    reference: float
    candidate: float
    relative: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    constant_ratio: bool
    p: float
    large: bool

    @property
    def factor(self) -> float:
        """The ratio or its inverse, whichever is above 1; 1.0 where there is no ratio."""
        return 1.0 if self.ratio is None else max(self.ratio, 1 / self.ratio)


def one_a_metric(shifts: Iterable[Shift]) -> tuple[Shift, ...]:
    """Keep one shift of each metric: the first that is large, else the first."""
    chosen: dict[str, Shift] = {}
    for shift in shifts:
        known = chosen.get(shift.metric.name)
        if known is None or (shift.large and not known.large):
            chosen[shift.metric.name] = shift
    return tuple(chosen.values())


def uses_ratio(metric: PairedMetric) -> bool:
    """Tell whether this metric is compared by ratio: a positive size, above 0 throughout."""
    positive = bool((metric.reference > 0).all() and (metric.candidate > 0).all())
    return metric.meaning.kind is MetricKind.POSITIVE and positive


def relative_to(level: float, values: FloatArray) -> float:
    """Return the denominator of a relative difference of a curve [n].

    Its level, unless that is less than half the range of the smoothed curve: a relative error
    against a level near 0 means nothing, so then the range.
    """
    span = float(np.ptp(smooth(values, window_for(len(values)))))
    return abs(level) if abs(level) >= span / 2 else span


def difference_of(metric: PairedMetric) -> FloatArray:
    """Return what is tested: the log ratio where the metric has one, else the difference."""
    if uses_ratio(metric):
        ratio: FloatArray = np.log(metric.candidate) - np.log(metric.reference)
        return np.where(metric.differs(), ratio, 0.0)
    return np.where(metric.differs(), metric.candidate - metric.reference, 0.0)


def measure(
    metric: PairedMetric,
    difference: FloatArray,
    onset: Onset,
    num_last: int,
    *,
    p: float,
    size: float,
    noise: float,
) -> Shift:
    """Measure a shift over the last steps and, where the metric has one, its ratio since the onset.

    Args:
        difference: float64 [n], of `difference_of`.
        size, noise: how far it moved and the standard deviation of one step, in its unit.
    """
    reference, candidate = (
        float(values[-num_last:].mean()) for values in (metric.reference, metric.candidate)
    )
    relative = (candidate - reference) / (relative_to(reference, metric.reference) or math.nan)
    ratio = low = high = None
    since = difference[metric.steps >= onset.step]
    if uses_ratio(metric) and len(since) >= 2 * MIN_WINDOW:
        error, freedom = standard_error(since)
        reach = t_quantile(CONFIDENCE, freedom) * error
        ratio, low, high = (math.exp(float(since.mean()) + x) for x in (0.0, -reach, reach))
    by_factor = ratio is not None and abs(size) >= math.log(LARGE_FACTOR.value)
    visible = abs(size) >= VISIBLE_EACH_STEP.value * noise
    return Shift(
        metric=metric,
        onset=onset,
        num_last=num_last,
        reference=reference,
        candidate=candidate,
        relative=relative,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        constant_ratio=ratio is not None and _same_in_both_halves(since),
        p=p,
        large=by_factor or (visible and not abs(relative) < SMALL_SHIFT.value),
    )


def _same_in_both_halves(difference: FloatArray) -> bool:
    """Tell whether the two halves' means differ by no more than 3 of their standard errors."""
    half = len(difference) // 2
    first, second = difference[:half], difference[half:]
    errors = math.hypot(standard_error(first)[0], standard_error(second)[0])
    return abs(float(first.mean() - second.mean())) <= NOISE_BAND.value * errors
