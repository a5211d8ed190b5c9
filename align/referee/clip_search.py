"""The clip range that a reported loss would come from, the policy's alone or with its other terms.

A wider range never raises the loss: the surrogate is the smaller of ratio · A and its clipped form.
So the range that gives a reported loss is found by bisection. One number always fits one number;
only a range of two digits, as people write them, is taken for an explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from align.referee.objective import Objective
from align.referee.recompute import POLICY, TOTAL
from align.referee.report import Report

_WIDEST, _HALVINGS = 8.0, 60
Ranged = Callable[[float], Objective]


def clip_ranges(declared: Objective, report: Report) -> Iterator[tuple[float, float]]:
    """Yield the ranges (low, high) that give a report's loss: both sides, or one alone."""
    name = next((name for name in (POLICY, TOTAL) if name in report.values), None)
    if name is None or name not in report.amounts(declared):
        return

    def both(width: float) -> Objective:
        return replace(declared, clip_low=width, clip_high=width)

    def upper(width: float) -> Objective:
        return replace(declared, clip_high=width)

    def lower(width: float) -> Objective:
        return replace(declared, clip_low=width)

    for ranged in (both, upper, lower):
        width = _solved(report, ranged, name)
        if width is not None:
            objective = ranged(width)
            yield objective.clip_low, objective.clip_high


def _solved(report: Report, ranged: Ranged, name: str) -> float | None:
    """Return the width, of two digits, that gives the reported loss; None where none does."""
    reported = report.values[name]
    narrow, wide = 0.0, _WIDEST
    for _ in range(_HALVINGS):
        middle = (narrow + wide) / 2
        if report.amounts(ranged(middle))[name].value > reported:
            narrow = middle
        else:
            wide = middle
    width = float(f"{wide:.2g}")
    fits = 0 < width < _WIDEST and report.meets(name, report.amounts(ranged(width))[name])
    return width if fits else None
