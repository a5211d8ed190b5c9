"""Which metrics shift for good, by how much, and from which step on.

Without repeats of the reference, noise can only be estimated within the two runs, so this says
what the two recorded runs differ in, not what a third run would do. Two correct runs whose
rounding differs drift apart as well: a significant shift alone is a note, and a large one a
warning; acceptance decides about the reward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from align.core.threshold import Threshold
from align.curves.change import MIN_EFFECTIVE_SIZE, LateChange, late_change
from align.curves.noise import FAMILY_ALPHA, cautious_size, holm, p_value
from align.curves.onset import Onset, onset_of
from align.curves.pair import FloatArray, PairedMetric
from align.curves.prominence import prominence
from align.curves.shift import LARGE_FACTOR, Shift, difference_of, measure, uses_ratio
from align.curves.smooth import window_for
from align.frameworks.vocabulary import MetricKind

MIN_STEPS = Threshold(
    30, source="at 20 steps of autocorrelation 0.8, one clean pair in seven looked shifted"
)
_TESTED = frozenset({MetricKind.POSITIVE, MetricKind.LEVEL, MetricKind.SIGNED, MetricKind.BOUNDED})


def is_testable(metric: PairedMetric) -> bool:
    """Tell whether a shift can be tested: a mean, at steps enough with numbers on both sides."""
    return metric.meaning.kind in _TESTED and int(metric.finite.sum()) >= MIN_STEPS.value


def testable(metrics: Iterable[PairedMetric]) -> Iterator[PairedMetric]:
    """Yield the metrics a shift can be tested in, each recorded series once.

    Extremes are left out (one sample a step; their mean is tested), and so are exact quantities,
    which need no test. Two names of one series (score and reward without a penalty) count once.
    """
    seen: set[tuple[bytes, bytes]] = set()
    for metric in sorted(metrics, key=lambda metric: prominence(metric.name)):
        finite = metric.finite_only()
        key = finite.reference.tobytes(), finite.candidate.tobytes()
        if is_testable(finite) and key not in seen:
            seen.add(key)
            yield finite


def find_shifts(metrics: Sequence[PairedMetric]) -> tuple[Shift, ...]:
    """Test every metric for a lasting shift and for a late one, allowing for all tests (Holm).

    A lasting shift is tested over all common steps and over their last half, on the log ratio where
    both sides are positive sizes, else on the difference; a ratio that is far from 1 at nearly
    every step needs no test. A late one is a change of that difference itself and counts where it
    is large. A metric can have both, the lasting one first.

    Warned of in clean pairs of ten AR(1) metrics, 300 pairs each, at autocorrelation 0.5, 0.8 and
    0.9: none, 2 % and 2 % at 30 steps, 1 %, 1 % and 6 % at 40, none, 1 % and 2 % at 58, none at
    500. Found where planted at 30 steps of autocorrelation 0.3: every factor of 2 or more, half of
    the shifts by 30 % (at 58 steps all of these too).
    """
    candidates = list(testable(metrics))
    tested = [difference_of(metric) for metric in candidates]
    changes = [late_change(difference) for difference in tested]
    adjusted = holm(
        [*map(smaller_of_two, tested), *(change.p if change else 1.0 for change in changes)]
    )
    p_values = zip(adjusted[: len(tested)], adjusted[len(tested) :], strict=True)
    return tuple(
        shift
        for metric, difference, change, (p_lasting, p_late) in zip(
            candidates, tested, changes, p_values, strict=True
        )
        for shift in (
            _lasting(metric, difference, p_lasting),
            _late(metric, difference, change, p_late),
        )
        if shift is not None
    )


def smaller_of_two(difference: FloatArray) -> float:
    """Test all steps and the last half; twice the smaller p (Bonferroni).

    A stretch worth fewer than ten independent values can look like anything and is not tested.
    """
    stretches = difference, difference[len(difference) // 2 :]
    tested = [p_value(s) for s in stretches if cautious_size(s) >= MIN_EFFECTIVE_SIZE.value]
    return min([1.0, *(2 * p for p in tested)])


def _apart_at_every_step(log_ratio: FloatArray) -> bool:
    """Tell whether 95 of 100 ratios, over 30 steps or more, are a factor sqrt(2) off one way.

    A ratio that wanders slowly around 2 is worth too few independent values for a test, and is
    still nowhere near 1.
    """
    least = math.log(LARGE_FACTOR.value)
    stretches = (s for s in (log_ratio, log_ratio[len(log_ratio) // 2 :]) if len(s) >= 30)
    return any(np.quantile(s, 0.05) >= least or np.quantile(s, 0.95) <= -least for s in stretches)


def _lasting(metric: PairedMetric, difference: FloatArray, p: float) -> Shift | None:
    """Return the shift if it is beyond chance, lasts, and began two smoothing windows ago."""
    apart = uses_ratio(metric) and _apart_at_every_step(difference)
    if not _lasts(difference) or not (p <= FAMILY_ALPHA.value or apart):
        return None
    late = difference[len(difference) // 2 :]
    size, noise = float(late.mean()), float(late.std())
    onset = _lasting_onset(metric, math.copysign(1.0, size))
    if onset is None:
        return None
    return measure(metric, difference, onset, len(late), p=p, size=size, noise=noise)


def _lasting_onset(metric: PairedMetric, sign: float) -> Onset | None:
    """Return an onset two smoothing windows before the end or more.

    A small shift in autocorrelated noise touches 0 now and then, also near the end (one in twenty
    at 4 % of the level, sigma 0.02): an average over three windows does not.
    """
    for num_windows in (1, 3):
        onset = onset_of(metric, sign, num_windows=num_windows)
        if int((metric.steps >= onset.step).sum()) >= 2 * window_for(len(metric)):
            return onset
    return None


def _late(
    metric: PairedMetric, difference: FloatArray, change: LateChange | None, p: float
) -> Shift | None:
    """Return a late change if it is beyond chance and large."""
    if change is None or p > FAMILY_ALPHA.value:
        return None
    earlier = float((metric.candidate - metric.reference)[: change.at].mean())
    onset = onset_of(metric, math.copysign(1.0, change.size), earlier)
    num_last = len(metric) - change.at
    shift = measure(metric, difference, onset, num_last, p=p, size=change.size, noise=change.noise)
    return shift if shift.large else None


def _lasts(difference: FloatArray) -> bool:
    """Tell whether the last half shifts the same way, by half as much at least."""
    whole, late = float(difference.mean()), float(difference[len(difference) // 2 :].mean())
    return whole * late > 0 and abs(late) >= abs(whole) / 2
