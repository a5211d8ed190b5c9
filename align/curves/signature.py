"""The signature of a collapse: entropy, response length and reward of one run leave together.

One metric that breaks down can be a mistake in that metric. A policy that breaks down takes the
others along, and which of them goes first says where to look: entropy before the rest is an update
that made the policy sure of too little (or of nothing), length before the rest is generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from align.core.finding import Side
from align.curves.collapse import Collapse, Fall, fall_at
from align.curves.onset import Onset
from align.curves.pair import PairedMetric
from align.curves.shift import Shift
from align.curves.smooth import MIN_WINDOW, window_for

_REWARDS = ("critic/score/mean", "critic/rewards/mean")
_LENGTHS = ("response_length/mean", "response_length_non_aborted/mean")
_ENTROPY = ("actor/entropy",)
_FAMILIES = (_ENTROPY, _LENGTHS, _REWARDS)


class Pattern(str, Enum):
    """How a policy breaks down."""

    SURE = "sure"  # entropy falls: the policy repeats itself
    LOST = "lost"  # entropy rises: the policy says anything
    SHORT = "short"  # length and reward alone


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """One metric that left the level it had.

    Args:
        level: of the run that left, before and after.
        onset: when.
    """

    metric: PairedMetric
    side: Side
    level: Fall
    onset: Onset

    @property
    def begin(self) -> int:
        """First step at which it can have begun."""
        return self.onset.step

    @property
    def end(self) -> int:
        """Last one."""
        return self.onset.step + self.onset.uncertainty

    @property
    def rises(self) -> bool:
        """Whether it left upwards."""
        return self.level.after > self.level.before


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Two or three metrics of one run that left together, one of them broken down.

    Args:
        movements: by onset, the earliest first.
        collapsed: names of those that lost half of their level or more.
    """

    side: Side
    pattern: Pattern
    movements: tuple[Movement, ...]
    collapsed: tuple[str, ...]

    @property
    def first_is_sure(self) -> bool:
        """Whether no other metric can have begun as early as the first."""
        return all(m.begin > self.movements[0].end for m in self.movements[1:])


def find_signature(collapses: Sequence[Collapse], shifts: Sequence[Shift]) -> Signature | None:
    """Find the signature of a collapse of one run.

    Reward or response length collapsed, and another of entropy, length and reward left its level on
    the same side, by a shift large enough for a warning. The level before must be known, so what is
    apart from the beginning does not count.
    """
    if not collapses:
        return None
    side = collapses[0].side
    collapsed = {c.metric.name: c for c in collapses if c.side is side}
    found = [_movement(family, collapsed, shifts) for family in _FAMILIES]
    movements = sorted(
        (m for m in found if m is not None and m.side is side), key=lambda m: (m.end, m.begin)
    )
    if len(movements) < 2:
        return None
    entropy = next((m for m in movements if m.metric.name in _ENTROPY), None)
    pattern = Pattern.SHORT
    if entropy is not None:
        pattern = Pattern.LOST if entropy.rises else Pattern.SURE
    names = tuple(m.metric.name for m in movements if m.metric.name in collapsed)
    return Signature(side, pattern, tuple(movements), names)


def _movement(
    family: Iterable[str], collapsed: dict[str, Collapse], shifts: Sequence[Shift]
) -> Movement | None:
    """Return how the first metric of a family that moved did; None where none did."""
    for name in family:
        if name in collapsed:
            collapse = collapsed[name]
            is_ours = collapse.side is Side.REFERENCE
            level = collapse.reference if is_ours else collapse.candidate
            return Movement(collapse.metric, collapse.side, level, collapse.onset)
        for shift in shifts:
            if shift.metric.name == name and shift.large:
                return _of_shift(shift)
    return None


def _of_shift(shift: Shift) -> Movement | None:
    metric = shift.metric
    at = int(np.searchsorted(metric.steps, shift.onset.step))
    if at < MIN_WINDOW:
        return None
    num = min(2 * window_for(len(metric)), shift.num_last)
    levels = {
        Side.REFERENCE: fall_at(metric.reference, at, num),
        Side.CANDIDATE: fall_at(metric.candidate, at, num),
    }
    side = max(levels, key=lambda each: abs(levels[each].after - levels[each].before))
    return Movement(metric, side, levels[side], shift.onset)
