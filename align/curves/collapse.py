"""Reward or response length that breaks down in one run while the other's goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from align.core.finding import Side
from align.core.threshold import Threshold
from align.curves.onset import Onset
from align.curves.pair import FloatArray, PairedMetric
from align.curves.shift import Shift, relative_to
from align.curves.smooth import MIN_WINDOW, window_for

COLLAPSED = Threshold(0.5, source="nearer to nothing than to the level it had")
_COLLAPSING = (
    "critic/score/mean",
    "critic/rewards/mean",
    "response_length/mean",
    "response_length_non_aborted/mean",
)


@dataclass(frozen=True, slots=True)
class Fall:
    """How far one run's metric fell.

    Args:
        before: mean just before the onset, over two smoothing windows at most.
        after: mean of the last steps, as many at most.
        share: fall over `relative_to` the level before; NaN where that is 0.
    """

    before: float
    after: float
    share: float


@dataclass(frozen=True, slots=True)
class Collapse:
    """A metric of one run that lost half of its level or more, and the other's did not."""

    metric: PairedMetric
    side: Side
    onset: Onset
    num_last: int  # steps since the level changed
    reference: Fall
    candidate: Fall


def find_collapses(shifts: Iterable[Shift]) -> Iterator[Collapse]:
    """Yield the large shifts of reward and response length that are a collapse, one a metric.

    The change found latest tells best where it began, so it is tried first. The level before must
    be known: five steps at least.
    """
    found: set[str] = set()
    for shift in sorted(shifts, key=lambda shift: shift.num_last):
        metric = shift.metric
        if metric.name not in _COLLAPSING or metric.name in found or not shift.large:
            continue
        collapse = _collapse(shift)
        if collapse is not None:
            found.add(metric.name)
            yield collapse


def _collapse(shift: Shift) -> Collapse | None:
    metric, at = shift.metric, int(np.searchsorted(shift.metric.steps, shift.onset.step))
    if at < MIN_WINDOW:
        return None
    num = min(2 * window_for(len(metric)), shift.num_last)
    reference, candidate = (fall_at(v, at, num) for v in (metric.reference, metric.candidate))
    for side, ours, theirs in (
        (Side.CANDIDATE, candidate, reference),
        (Side.REFERENCE, reference, candidate),
    ):
        if ours.share >= COLLAPSED.value and ours.share - theirs.share >= COLLAPSED.value:
            return Collapse(metric, side, shift.onset, shift.num_last, reference, candidate)
    return None


def fall_at(values: FloatArray, at: int, num_last: int) -> Fall:
    """Measure how far a series [n] fell from before index ``at`` to its last ``num_last`` steps."""
    earlier = values[:at]
    before = float(earlier[-2 * window_for(len(values)) :].mean())
    after = float(values[-num_last:].mean())
    share = (before - after) / (relative_to(before, earlier) or np.nan)
    return Fall(before, after, share)
