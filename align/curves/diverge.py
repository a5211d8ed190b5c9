"""Which metrics shift for good, by how much, and from which step on.

Without repeats of the reference, noise can only be estimated within the two runs, so this says
what the two recorded runs differ in, not what a third run would do. Two correct runs whose
rounding differs drift apart as well: a significant shift alone is a note, and a large one a
warning; acceptance decides about the reward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from align.core.threshold import Threshold
from align.curves.bootstrap import CONFIDENCE
from align.curves.noise import (
    FAMILY_ALPHA,
    effective_size,
    holm,
    p_value,
    standard_error,
    t_quantile,
)
from align.curves.pair import FloatArray, PairedMetric
from align.curves.prominence import prominence
from align.curves.smooth import MIN_WINDOW, counts, smooth, window_for
from align.frameworks.vocabulary import MetricKind

MIN_STEPS = Threshold(
    30, source="at 20 steps of autocorrelation 0.8, one clean pair in seven looked shifted"
)
MIN_EFFECTIVE_SIZE = Threshold(
    10, source="with 5, one clean pair in ten of 58 steps and autocorrelation 0.9 looked shifted"
)
NOISE_BAND = Threshold(3.0, source="Shewhart control limits: 3 standard errors of the average")
VISIBLE_EACH_STEP = Threshold(
    3.0, source="Shewhart control limits: a shift of 3 sigma shows in nearly every single step"
)
LARGE_FACTOR = Threshold(
    math.sqrt(2), source="nearer to 2, the smallest scaling mistake, than to 1 on a log scale"
)
SMALL_SHIFT = Threshold(
    0.04, source="the reward curve's own tolerance of 4 %, for lack of one for other metrics"
)

_TESTED = frozenset({MetricKind.POSITIVE, MetricKind.LEVEL, MetricKind.SIGNED, MetricKind.BOUNDED})


@dataclass(frozen=True, slots=True)
class Shift:
    """A significant difference that lasts to the end.

    Args:
        onset: first step at which the smoothed difference is outside the noise band without
            coming back to 0 later.
        reference, candidate: means over the last half of the common steps.
        relative: candidate - reference over `relative_to` the reference; NaN where that is 0.
        ratio, ratio_low, ratio_high: geometric mean of candidate / reference from the onset on,
            with its 95 % interval; None where the quantity has no ratio.
        constant_ratio: both halves of these steps have the same ratio.
        p: probability of such a mean by chance, adjusted for the metrics tested with it; 1.0 where
            the steps are worth too few independent values to say, and nearly all are far apart.
        large: also large enough for a warning.
    """

    metric: PairedMetric
    onset: int
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


def testable(metrics: Iterable[PairedMetric]) -> Iterator[PairedMetric]:
    """Yield the metrics a shift can be tested in, each recorded series once.

    Extremes are left out (one sample a step; their mean is tested), and so are exact quantities,
    which need no test. Two names of one series (score and reward without a penalty) count once.
    """
    seen: set[tuple[bytes, bytes]] = set()
    for metric in sorted(metrics, key=lambda metric: prominence(metric.name)):
        finite = metric.finite_only()
        key = finite.reference.tobytes(), finite.candidate.tobytes()
        if metric.meaning.kind in _TESTED and len(finite) >= MIN_STEPS.value and key not in seen:
            seen.add(key)
            yield finite


def find_shifts(metrics: Sequence[PairedMetric]) -> tuple[Shift, ...]:
    """Test every metric for a lasting shift, allowing for how many are tested (Holm).

    Each is tested over all common steps and over their last half, on the log ratio where both
    sides are positive sizes, else on the difference; a ratio that is far from 1 at nearly every
    step needs no test.

    Large shifts found in clean pairs of ten AR(1) metrics, 150 seeds each: none at 500 steps up
    to autocorrelation 0.9; at 58 steps 0 % up to 0.5, 3 % at 0.8, 5 % at 0.9; at 30 steps 3 % at
    0.5 and 23 % at 0.9, where a wandering series cannot be told from a shifted one.
    """
    candidates = list(testable(metrics))
    tested = [_difference(metric) for metric in candidates]
    p_values = [_smaller_of_two(difference) for difference in tested]
    shifts = (
        _measure(metric, difference, p)
        for metric, difference, p in zip(candidates, tested, holm(p_values), strict=True)
        if _lasts(difference)
        and (p <= FAMILY_ALPHA.value or (uses_ratio(metric) and _apart_at_every_step(difference)))
    )
    return tuple(shift for shift in shifts if _stays_out(shift))


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


def onset_of(metric: PairedMetric, sign: float) -> int:
    """Return the step from which the smoothed difference is out of the noise band for good.

    In the metric's own unit: early values near 0 have wild ratios. The band is 3 standard errors
    of the smoothed difference, from its scatter around its own average.
    """
    difference = sign * (metric.candidate - metric.reference)
    window = window_for(len(difference))
    average = smooth(difference, window)
    scatter = float((difference - average).std()) * math.sqrt(window / (window - 1))
    band = NOISE_BAND.value * scatter / np.sqrt(counts(len(average), window))
    # The last window may touch 0 by chance: that is not a return.
    at_zero = np.flatnonzero(average[:-window] <= 0)
    after = int(at_zero[-1]) + 1 if len(at_zero) else 0
    out = np.flatnonzero((average > band)[after:])
    return int(metric.steps[after + (int(out[0]) if len(out) else 0)])


def _difference(metric: PairedMetric) -> FloatArray:
    if uses_ratio(metric):
        ratio: FloatArray = np.log(metric.candidate) - np.log(metric.reference)
        return np.where(metric.differs(), ratio, 0.0)
    return np.where(metric.differs(), metric.candidate - metric.reference, 0.0)


def _smaller_of_two(difference: FloatArray) -> float:
    """Test all steps and the last half; twice the smaller p (Bonferroni).

    A stretch worth fewer than ten independent values can look like anything and is not tested.
    """
    stretches = difference, difference[len(difference) // 2 :]
    tested = [p_value(s) for s in stretches if effective_size(s) >= MIN_EFFECTIVE_SIZE.value]
    return min([1.0, *(2 * p for p in tested)])


def _apart_at_every_step(log_ratio: FloatArray) -> bool:
    """Tell whether 95 of 100 ratios, over 30 steps or more, are a factor sqrt(2) off one way.

    A ratio that wanders slowly around 2 is worth too few independent values for a test, and is
    still nowhere near 1.
    """
    least = math.log(LARGE_FACTOR.value)
    stretches = (s for s in (log_ratio, log_ratio[len(log_ratio) // 2 :]) if len(s) >= 30)
    return any(np.quantile(s, 0.05) >= least or np.quantile(s, 0.95) <= -least for s in stretches)


def _lasts(difference: FloatArray) -> bool:
    """Tell whether the last half shifts the same way, by half as much at least."""
    whole, late = float(difference.mean()), float(difference[len(difference) // 2 :].mean())
    return whole * late > 0 and abs(late) >= abs(whole) / 2


def _stays_out(shift: Shift) -> bool:
    """Tell whether the curves part for two smoothing windows at least before the runs end."""
    steps = shift.metric.steps
    return int((steps >= shift.onset).sum()) >= 2 * window_for(len(steps))


def _measure(metric: PairedMetric, difference: FloatArray, p: float) -> Shift:
    half = len(difference) // 2
    ratio = low = high = None
    late = difference[half:]
    reference, candidate = (float(v[half:].mean()) for v in (metric.reference, metric.candidate))
    scale = relative_to(reference, metric.reference) or math.nan
    onset = onset_of(metric, math.copysign(1.0, float(late.mean())))
    since = difference[metric.steps >= onset]
    if uses_ratio(metric) and len(since) >= 2 * MIN_WINDOW:
        error, freedom = standard_error(since)
        reach = t_quantile(CONFIDENCE, freedom) * error
        ratio, low, high = (math.exp(float(since.mean()) + x) for x in (0.0, -reach, reach))
    return Shift(
        metric=metric,
        onset=onset,
        reference=reference,
        candidate=candidate,
        relative=(candidate - reference) / scale,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        constant_ratio=ratio is not None and _same_in_both_halves(since),
        p=p,
        large=_is_large(late, (candidate - reference) / scale, ratio),
    )


def _is_large(late: FloatArray, relative: float, ratio: float | None) -> bool:
    if ratio is not None and abs(float(late.mean())) >= math.log(LARGE_FACTOR.value):
        return True
    visible = abs(float(late.mean())) >= VISIBLE_EACH_STEP.value * float(late.std())
    return visible and not abs(relative) < SMALL_SHIFT.value


def _same_in_both_halves(difference: FloatArray) -> bool:
    """Tell whether the two halves' means differ by no more than 3 of their standard errors."""
    half = len(difference) // 2
    first, second = difference[:half], difference[half:]
    errors = math.hypot(standard_error(first)[0], standard_error(second)[0])
    return abs(float(first.mean() - second.mean())) <= NOISE_BAND.value * errors
