"""Offset, step or drift: which course a difference that is beyond chance takes.

First, does its level change at all? The largest CUSUM of the difference is held against those of
moving-block resamples of what is left around its levels (the change points are those of ruptures'
exact kernel search). If it does, a step and a ramp are fitted to the series with its first-order
autocorrelation taken out, and the smaller sum of squares decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from align.core.threshold import Threshold
from align.curves.bootstrap import NUM_RESAMPLES, block_length, resample
from align.curves.curve_class import CurveClass
from align.curves.noise import lag_one_autocorrelation
from align.curves.pair import FloatArray
from align.curves.smooth import MIN_WINDOW, window_for

LEVEL_CHANGES = Threshold(
    0.01, source="one offset in a hundred may be called a step or a drift by chance"
)
SURE = Threshold(4.0, source="twice a log likelihood ratio of 2: one course e^2 times as likely")
_MAX_AUTOCORRELATION = 0.97
_GRID = 40  # places a ramp may begin or end at
_EARLY = 0.05  # a change in the first twentieth leaves one level: an offset


@dataclass(frozen=True, slots=True)
class Shape:
    """The course of a difference.

    Args:
        kind: OFFSET, STEP or DRIFT.
        changes: indices at which the difference changes its level, found by ruptures.
        begin, end: indices between which it moves: 0, 0 for an offset; two smoothing windows apart
            at most for a step.
        p: of the largest CUSUM, if the level never changed.
        is_sure: a step can be told from a drift.
    """

    kind: CurveClass
    changes: tuple[int, ...]
    begin: int
    end: int
    p: float
    is_sure: bool


def shape_of(difference: FloatArray) -> Shape:
    """Tell which course a significant difference [n], n >= 30, takes."""
    changes = change_points(difference)
    residual = difference - _levels(difference, changes)
    p = level_change_p(difference, residual)
    begin, end, is_sure = _best_move(difference, lag_one_autocorrelation(residual))
    late = max(MIN_WINDOW, int(_EARLY * len(difference)))
    if p > LEVEL_CHANGES.value or end <= late:
        return Shape(CurveClass.OFFSET, changes, 0, 0, p, True)
    if end - begin <= 2 * window_for(len(difference)):
        return Shape(CurveClass.STEP, changes, begin, end, p, is_sure)
    return Shape(CurveClass.DRIFT, changes, begin, end, p, is_sure)


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


def _best_move(values: FloatArray, correlation: float) -> tuple[int, int, bool]:
    """Fit one level that becomes another between two steps; return these, and if that is sure.

    The likelier of the best move within two smoothing windows and the best longer ramp.
    """
    num = len(values)
    places = np.unique(np.linspace(0, num, _GRID + 1).astype(np.int64))
    steps = np.arange(MIN_WINDOW, num - MIN_WINDOW + 1)
    ramps = [(int(a), int(b)) for a in places for b in places if b - a >= 2 * MIN_WINDOW]
    moves = [*((int(at), int(at)) for at in steps), *ramps]
    begin, end = (np.array([m[k] for m in moves], dtype=np.float64)[:, None] for k in (0, 1))
    time = np.arange(num, dtype=np.float64)
    length = np.maximum(end - begin, 1.0)
    ramp_share, step_share = np.clip((time - begin) / length, 0, 1), (time >= begin).astype(float)
    share = np.where(end > begin, ramp_share, step_share)
    rss = _least_squares(_whiten(values[None], correlation)[0], _whiten(share, correlation))
    is_short = (end - begin)[:, 0] <= 2 * window_for(num)
    short, ramp = (int(np.argmin(np.where(kept, rss, np.inf))) for kept in (is_short, ~is_short))
    tiny = float(np.finfo(np.float64).tiny)
    gain = num * math.log((float(rss[ramp]) + tiny) / (float(rss[short]) + tiny))
    return *moves[short if gain >= 0 else ramp], abs(gain) >= SURE.value


def _whiten(values: FloatArray, correlation: float) -> FloatArray:
    """Take first-order autocorrelation out of series [m, n]; the first step is dropped."""
    whitened: FloatArray = values[:, 1:] - correlation * values[:, :-1]
    return whitened


def _least_squares(values: FloatArray, regressors: FloatArray) -> FloatArray:
    """Return the residual sum of squares of ``values`` [n] on a level and each regressor [m, n]."""
    centred = values - values.mean()
    moves = regressors - regressors.mean(axis=1, keepdims=True)
    size = np.maximum((moves * moves).sum(axis=1), np.finfo(np.float64).tiny)
    explained = (moves @ centred) ** 2 / size
    rest: FloatArray = np.maximum(float(centred @ centred) - explained, 0.0)
    return rest
