"""Offset, step or drift: which course a difference that is beyond chance takes, if it tells.

First, does its level change at all? The largest CUSUM of the difference is held against those of
moving-block resamples of what is left around its levels (the change points are those of ruptures'
exact kernel search). If it does not, the difference is an offset where it was there from the
beginning: a drift from equal runs would have begun near 0. If it does, steps and ramps at every
place are fitted with the noise's first-order autocorrelation taken out, and the course is named
where the odds for it are nine to one. Else the class says between which courses it lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from align.core.threshold import Threshold
from align.curves.bootstrap import NUM_RESAMPLES, block_length, resample
from align.curves.curve_class import CurveClass
from align.curves.moves import odds_of
from align.curves.noise import p_value
from align.curves.pair import FloatArray
from align.curves.smooth import MIN_WINDOW, window_for

LEVEL_CHANGES = Threshold(
    0.01, source="one offset in a hundred may be called a step or a drift by chance"
)
FROM_THE_BEGINNING = Threshold(
    0.05, source="one drift in twenty that begins at 0 may look apart in its first quarter"
)
NAMED = Threshold(0.9, source="nine to one: of ten courses named so surely, one may be the other")
_MAX_AUTOCORRELATION = 0.97
_EARLY = 0.05  # a change in the first twentieth leaves one level: an offset


@dataclass(frozen=True, slots=True)
class Shape:
    """The course of a difference.

    Args:
        kind: OFFSET, STEP, DRIFT, or what it lies between.
        changes: indices at which the difference changes its level, found by ruptures.
        begin, end: indices between which it moves: 0, 0 for an offset; two smoothing windows apart
            at most for a step.
        p: of the largest CUSUM, if the level never changed.
    """

    kind: CurveClass
    changes: tuple[int, ...]
    begin: int
    end: int
    p: float


def shape_of(difference: FloatArray) -> Shape:
    """Tell which course a significant difference [n], n >= 30, takes.

    Measured on 200 differences of 500 steps each, autocorrelation 0 to 0.7, in the study of
    docs/accuracy.md's noise: an offset of 4 % is called one in 97 of 100, a step of 8 % in 68 and
    a drift of 15 % in 99; a step or drift of 5 % in 28, else "step or drift"; another course than
    the true one in 3 at most.
    """
    changes = change_points(difference)
    residual = difference - _levels(difference, changes)
    p = level_change_p(difference, residual)
    window = window_for(len(difference))
    late = max(MIN_WINDOW, int(_EARLY * len(difference)))
    odds = odds_of(difference, residual, early=late, short=2 * window)
    if p > LEVEL_CHANGES.value:
        kind = CurveClass.OFFSET if _apart_at_once(difference) else CurveClass.SHIFT
        return Shape(kind, changes, 0, 0, p)
    if odds.end <= late:
        return Shape(CurveClass.OFFSET, changes, 0, 0, p)
    if odds.offset > 1 - NAMED.value:
        return Shape(CurveClass.SHIFT, changes, odds.begin, odds.end, p)
    step = odds.step / (odds.step + odds.drift)
    kind = CurveClass.STEP_OR_DRIFT
    if max(step, 1 - step) >= NAMED.value:
        kind = CurveClass.STEP if step > 0.5 else CurveClass.DRIFT
    return Shape(kind, changes, odds.begin, odds.end, p)


def _apart_at_once(difference: FloatArray) -> bool:
    """Tell whether the first quarter [n] is apart already, the same way as the whole."""
    first = difference[: max(len(difference) // 4, 3)]
    same_way = float(first.mean()) * float(difference.mean()) > 0
    return same_way and p_value(first) <= FROM_THE_BEGINNING.value


def change_points(values: FloatArray) -> tuple[int, ...]:
    """Return the indices at which a series [n] takes a new level, of 5 steps at least.

    The penalty of a level is 2 log n times the variance of independent steps, enlarged for
    first-order autocorrelation r: s^2 (1 + r) / (1 - r). Both come from successive differences,
    which a few changes of level leave as they are: their own lag-one autocorrelation is
    -(1 - r) / 2, their variance 2 s^2 (1 - r). Source: Yao 1988 (BIC); exact search: ruptures.
    """
    from ruptures.detection import KernelCPD  # type: ignore[import-untyped]

    moves = np.diff(values)
    size = float(moves @ moves)
    if len(values) < 4 * MIN_WINDOW or size == 0:
        return ()
    r = 1 + 2 * float(moves[1:] @ moves[:-1]) / size
    r = min(max(r, 0.0), _MAX_AUTOCORRELATION)
    variance = size / len(moves) / (2 * (1 - r)) * (1 + r) / (1 - r)
    search = KernelCPD(kernel="linear", min_size=MIN_WINDOW).fit(values.reshape(-1, 1))
    found = search.predict(pen=2 * math.log(len(values)) * variance)
    return tuple(int(at) for at in found[:-1])


def level_change_p(difference: FloatArray, residual: FloatArray) -> float:
    """Return the chance that a difference [n] of one level has a CUSUM as large as this.

    ``residual`` [n] is its noise; moving blocks keep its autocorrelation (Künsch 1989).
    """
    blocks = resample(residual, max(MIN_WINDOW, block_length(residual)))
    drawn = _cusum(blocks)
    reached = int((drawn >= float(_cusum(difference[None])[0])).sum())
    return (1 + reached) / (1 + NUM_RESAMPLES)


def _cusum(values: FloatArray) -> FloatArray:
    """Return the largest |sum of deviations from the mean| of each series [m, n]."""
    sums = np.cumsum(values - values.mean(axis=-1, keepdims=True), axis=-1)
    largest: FloatArray = np.abs(sums).max(axis=-1)
    return largest


def _levels(values: FloatArray, changes: tuple[int, ...]) -> FloatArray:
    """float64 [n]: the mean between two changes, at each step."""
    parts = np.split(values, changes)
    return np.concatenate([np.full(len(part), part.mean()) for part in parts])
