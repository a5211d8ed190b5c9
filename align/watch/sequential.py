"""The sequential test: has the candidate left the reference, given everything seen so far?

At every step the mean difference of the last 5, 10, 20, 50 and 100 steps is held against its
standard error, a windowed scan for a change of mean (window-limited generalised likelihood ratio:
Willsky and Jones 1976, Lai 1995). The standard error is that of an average of autocorrelated steps
(`noise.error_of_average`), from the reference's own noise around the step and from the earlier
differences of both runs, whichever is larger.

Where successive differences are alike (autocorrelation 0.5 and more) their level wanders, and that
test waits long. There the last 5, 10 and 20 innovations are tested too: each difference minus what
the one before it lets expect. All tests of 500 steps share one error of 1 % (Bonferroni), so at
most one clean run in a hundred alarms, whatever the dependence between tests; an alarm must also be
large enough to matter.

A reference that is short and steep says too little about its noise. There a change by half of the
level is called where its 5 steps lie farther out than any wandering of the differences before goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from align.core.threshold import Threshold
from align.core.watch_record import Alarm, Trace
from align.curves.accept import CONVERGENCE_LIMIT
from align.curves.collapse import COLLAPSED
from align.curves.noise import (
    cautious_size,
    error_of_average,
    lag_one_autocorrelation,
    t_quantile,
)
from align.curves.pair import FloatArray, IntArray, PairedMetric, Pairing
from align.curves.shift import relative_to, uses_ratio

FALSE_ALARMS = Threshold(0.01, source="one clean run of 500 steps in a hundred may alarm")
PER_STEPS = Threshold(500, source="field acceptance: min(24 h, 500 steps)")
WINDOWS = (5, 10, 20, 50, 100)
MOVING_WINDOWS = (5, 10, 20)
ALIKE = Threshold(0.5, source="below, the mean of 5 steps is nearly as sure as of independent ones")
MIN_KNOWN = Threshold(
    30, source="fewer steps say too little about their autocorrelation (Bartlett 1946)"
)
UNMISTAKABLE = Threshold(
    8.0,
    source="mean of 5 steps over the root mean square of the 15 or more that end 5 steps before: "
    "beyond it in 15 of 10,000 simulated runs at autocorrelation 0.95, in none of 12,000 at 0.8",
)
MIN_BEFORE = Threshold(15, source="as simulated for the limit of what is unmistakable")
_CAUTION = 1.5  # standard errors
_AROUND = 50  # steps on either side that the reference's noise is taken from
_LEVEL = 20  # last steps that the reference's level is taken from
_HISTORY = 100  # earlier differences that their noise is taken from
REWARDS = ("critic/score/mean", "critic/rewards/mean")
OTHERS = ("response_length/mean", "actor/entropy")


def watched(pairing: Pairing, names: tuple[str, ...] = ()) -> tuple[PairedMetric, ...]:
    """Return the metrics that are tested: reward, response length and entropy, or those named."""
    rewards = [metric for name in REWARDS if (metric := pairing.get(name)) is not None]
    others = [metric for name in OTHERS if (metric := pairing.get(name)) is not None]
    if names:
        return tuple(metric for name in names if (metric := pairing.get(name)) is not None)
    return (*rewards[:1], *others)


def alarms(pairing: Pairing, metrics: tuple[PairedMetric, ...], from_step: int) -> list[Alarm]:
    """Return the alarms of the first step that has any, at ``from_step`` or later.

    Args:
        metrics: that are tested; a value that is not a number counts in every metric of training.
    """
    found = list(_not_numbers(pairing, from_step))
    for metric in metrics:
        alarm = first_alarm(metric, len(metrics), from_step)
        found += [alarm] if alarm is not None else []
    first = min((alarm.step for alarm in found), default=0)
    return [alarm for alarm in found if alarm.step == first]


def first_alarm(metric: PairedMetric, num_metrics: int, from_step: int) -> Alarm | None:
    """Return a metric's first alarm at ``from_step`` or later; None where there is none."""
    finite = metric.finite_only()
    test = _Test.of(finite, num_metrics)
    begin = int(np.searchsorted(finite.steps, from_step)) + 1
    for end, window in _large_enough(test, begin):
        tests = (test.deviation, test.movement, test.fall)
        found = (each(end, window) for each in tests)
        deviation = next((each for each in found if each is not None), None)
        if deviation is not None:
            last = slice(end - window, end)
            return Alarm(
                metric=metric.name,
                step=int(finite.steps[end - 1]),
                since=int(finite.steps[end - window]),
                reference=float(finite.reference[last].mean()),
                candidate=float(finite.candidate[last].mean()),
                deviation=deviation,
            )
    return None


def trace(
    metric: PairedMetric, num_metrics: int, from_step: int, known: Trace | None = None
) -> Trace | None:
    """Return how far a metric was from its reference at every step; None where that is not known.

    Of the means of 5 to 100 steps, each with its standard error, that which is farthest out.

    Args:
        known: what was found before, kept for the steps before ``from_step``.
    """
    finite = metric.finite_only()
    test = _Test.of(finite, num_metrics)
    if math.isnan(test.freedom) or len(finite) < WINDOWS[0]:
        return None
    begin = 0 if known is None else int(np.searchsorted(finite.steps, from_step))
    kept = 0 if known is None else int(np.searchsorted(known.steps, from_step))
    ends = range(max(begin + 1, WINDOWS[0]), len(finite) + 1)
    farthest = [test.farthest(end) for end in ends]
    earlier = ((), (), ()) if known is None else (known.steps, known.deviations, known.sizes)
    return Trace(
        metric=metric.name,
        steps=(*earlier[0][:kept], *(int(finite.steps[end - 1]) for end in ends)),
        deviations=(*earlier[1][:kept], *(deviation for deviation, _ in farthest)),
        sizes=(*earlier[2][:kept], *(size for _, size in farthest)),
        limit=_quantile(test.confidence, round(test.freedom, 1)),
    )


def _large_enough(test: _Test, begin: int) -> Iterator[tuple[int, int]]:
    """Yield (end, window) in order of step where the mean difference is one that matters."""
    sums = np.concatenate([[0.0], np.cumsum(test.difference)])
    large = {
        window: set(
            (np.flatnonzero(np.abs(sums[window:] - sums[:-window]) >= test.least * window) + window)
            .astype(int)
            .tolist()
        )
        for window in WINDOWS
    }
    # A movement shows first in the last steps alone.
    ends = {w: large[w] | large[WINDOWS[0]] if w in MOVING_WINDOWS else large[w] for w in WINDOWS}
    found = [(end, w) for w in WINDOWS for end in ends[w] if end >= max(begin, w)]
    return iter(sorted(found))


@dataclass(frozen=True, slots=True)
class _Test:
    """One metric as it is tested: differences, or log ratios of positive sizes.

    Args:
        difference: float64 [n], candidate - reference.
        reference: float64 [m], all of the reference in the same unit, also steps to come.
        positions: int64 [n], where in ``reference`` each step is.
        least: smallest difference that matters.
        half: half of the level, or a factor of 2.
        confidence: of one test, so that all of them together keep `FALSE_ALARMS`.
        freedom: degrees of freedom of the noise; NaN where it is not known.
    """

    difference: FloatArray
    reference: FloatArray
    positions: IntArray
    least: float
    half: float
    confidence: float
    freedom: float

    @classmethod
    def of(cls, metric: PairedMetric, num_metrics: int) -> _Test:
        series = metric.reference_series
        usable = np.isfinite(series.values)
        reference, ours, theirs = series.values[usable], metric.reference, metric.candidate
        if metric.name not in REWARDS and uses_ratio(metric) and (reference > 0).all():
            ours, theirs, reference = np.log(ours), np.log(theirs), np.log(reference)
            least = half = -math.log(1 - COLLAPSED.value)
        else:
            level = relative_to(float(reference[-_LEVEL:].mean()), reference) if len(series) else 0
            limit = CONVERGENCE_LIMIT if metric.name in REWARDS else COLLAPSED
            least, half = limit.value * level, COLLAPSED.value * level
        tests = PER_STEPS.value * (len(WINDOWS) + len(MOVING_WINDOWS)) * max(num_metrics, 1)
        return cls(
            difference=theirs - ours,
            reference=reference,
            positions=np.searchsorted(series.steps[usable], metric.steps),
            least=least,
            half=half,
            confidence=1 - FALSE_ALARMS.value / tests,
            freedom=_freedom(reference),
        )

    def deviation(self, end: int, window: int) -> float | None:
        """Return the mean of ``window`` steps before ``end`` in standard errors, if it alarms.

        None without an alarm, and where the noise is not known.
        """
        if math.isnan(self.freedom):
            return None
        mean = float(self.difference[end - window : end].mean())
        if abs(mean) < self.least:
            return None
        error = self._error(end, window)
        size = abs(mean) / error if error else math.inf
        return size if size > _quantile(self.confidence, round(self.freedom, 1)) else None

    def farthest(self, end: int) -> tuple[float, float]:
        """Return the largest |mean| of a window before ``end``, in standard errors, and its size.

        The size is a share of the smallest difference that matters.
        """
        found = []
        for window in WINDOWS:
            if window <= end:
                mean = abs(float(self.difference[end - window : end].mean()))
                error = self._error(end, window)
                deviation = mean / error if error else (math.inf if mean else 0.0)
                found.append((deviation, mean / self.least if self.least else math.inf))
        return max(found)

    def movement(self, end: int, window: int) -> float | None:
        """Return the mean of ``window`` innovations before ``end`` in standard errors.

        None where they do not alarm, where the differences are not alike from step to step, and
        where they do not move away from 0.
        """
        before = self.difference[max(0, end - window - _HISTORY) : end - window]
        if window not in MOVING_WINDOWS or len(before) < MIN_KNOWN.value:
            return None
        own = self._around(end)
        alike = _pooled_autocorrelation(before, own)
        if alike is None:
            return None
        last = self.difference[end - window - 1 : end]
        mean = float((last[1:] - alike * last[:-1]).mean())
        if mean * float(last[-WINDOWS[0] :].mean()) <= 0:
            return None
        known, own = (series[1:] - alike * series[:-1] for series in (before, own))
        error = max(
            error_of_average(known, window, lag_one_autocorrelation(known)),
            math.sqrt(2) * error_of_average(own, window, lag_one_autocorrelation(own)),
        )
        size = abs(mean) / error if error else math.inf
        freedom = max(cautious_size(known) - 2, 1.0)
        return size if size > _quantile(self.confidence, round(freedom, 1)) else None

    def fall(self, end: int, window: int) -> float | None:
        """Return the mean of 5 steps over the root mean square of earlier ones, if unmistakable.

        As many standard errors at least, whatever the dependence of the 5 steps. The 5 steps before
        them may be of the fall itself and do not count.
        """
        before = self.difference[: max(0, end - 2 * window)]
        if window != WINDOWS[0] or len(before) < MIN_BEFORE.value or not self.half:
            return None
        mean = abs(float(self.difference[end - window : end].mean()))
        typical = math.sqrt(float(before @ before) / len(before))
        if mean < self.half or mean <= UNMISTAKABLE.value * typical:
            return None
        return mean / typical if typical else math.inf

    def _around(self, end: int) -> FloatArray:
        at = int(self.positions[end - 1])
        around = self.reference[max(0, at - _AROUND) : at + _AROUND]
        if len(around) < MIN_KNOWN.value:
            around = self.reference[-int(MIN_KNOWN.value) :]
        return around

    def _error(self, end: int, window: int) -> float:
        around = self._around(end)
        error = math.sqrt(2) * error_of_average(around, window)
        before = self.difference[max(0, end - window - _HISTORY) : end - window]
        if len(before) >= MIN_KNOWN.value:
            error = max(error, error_of_average(before, window))
        return error


def _pooled_autocorrelation(before: FloatArray, own: FloatArray) -> float | None:
    """Return what innovations are taken with; None where successive steps are hardly alike.

    The earlier differences [n] and the reference around the step [m] are noise of one recipe, so
    that both say how alike its steps are; of the differences alone, a collapse at autocorrelation
    0.8 was called later than ten steps in one run of five. One and a half standard errors more:
    what is taken too low leaves wandering in the innovations. Of 150 clean runs of 500 steps at
    autocorrelation 0.95 none alarmed so, and one with one standard error.
    """
    num, more = len(before), len(own)
    alike = num * lag_one_autocorrelation(before) + more * lag_one_autocorrelation(own)
    alike /= num + more
    if alike < ALIKE.value:
        return None
    return min(1.0, alike + _CAUTION * math.sqrt((1 - alike**2) / (num + more)))


def _not_numbers(pairing: Pairing, from_step: int) -> Iterator[Alarm]:
    """Yield metrics of training that stopped being numbers where the reference's never did."""
    for metric in pairing.training:
        bad = ~np.isfinite(metric.candidate) & (metric.steps >= from_step)
        if (
            bad.any()
            and metric.meaning.numeric
            and np.isfinite(metric.reference_series.values).all()
        ):
            at = int(np.argmax(bad))
            step = int(metric.steps[at])
            values = float(metric.reference[at]), float(metric.candidate[at])
            yield Alarm(metric.name, step, step, *values, math.inf)


def _freedom(reference: FloatArray) -> float:
    """Return the degrees of freedom of the noise: of stretches of 100 steps around their lines.

    NaN where the reference is too short to tell. A trend over the whole run is no noise.
    """
    num = max(1, round(len(reference) / (2 * _AROUND)))
    stretches = [s for s in np.array_split(reference, num) if len(s) >= MIN_KNOWN.value]
    return sum(max(cautious_size(s) - 2, 1.0) for s in stretches) if stretches else math.nan


@lru_cache(maxsize=4096)
def _quantile(confidence: float, freedom: float) -> float:
    return t_quantile(confidence, freedom)
