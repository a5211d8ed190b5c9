"""How likely each course of a difference is: one level, a step, or a ramp, wherever it may lie.

Every move of the level from one step to another is a regressor beside a constant. Its Bayes factor
against the constant alone is that of Zellner's g-prior with g = n (unit information), in closed
form: (1 + g)^((n - 2) / 2) (1 + g (1 - R^2))^(-(n - 1) / 2) (Liang et al. 2008). A course's is the
mean over its places, so that many places are no advantage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from align.curves.noise import lag_one_autocorrelation
from align.curves.pair import FloatArray, IntArray
from align.curves.smooth import MIN_WINDOW

_GRID = 40  # places a ramp may begin or end at


@dataclass(frozen=True, slots=True)
class Odds:
    """Probabilities of the three courses, equal before the data, and the likeliest move.

    Args:
        offset: no move, or one that is over early.
        step: a move within a short stretch.
        drift: a longer one.
        begin, end: indices of the likeliest move of the likelier of step and drift.
    """

    offset: float
    step: float
    drift: float
    begin: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class _Moves:
    """Candidates: moves of the level by 1.

    Args:
        begin, end: int64 [m]; equal for a step.
        share: float64 [m, n], how much of the move is done at each step.
    """

    begin: IntArray
    end: IntArray
    share: FloatArray


def odds_of(difference: FloatArray, residual: FloatArray, *, early: int, short: int) -> Odds:
    """Weigh the courses of a difference [n].

    Args:
        residual: float64 [n], its noise as known so far; its autocorrelation finds the best move,
            around which it is estimated again.
        early: a move that ends here or before leaves one level.
        short: longest move that counts as a step.
    """
    num = len(difference)
    moves = _moves(num)
    first = _explained(difference, moves.share, lag_one_autocorrelation(residual))
    around = _around(difference, moves.share[int(np.argmax(first))])
    explained = _explained(difference, moves.share, lag_one_autocorrelation(around))
    n = num - 1  # whitening drops the first step
    factors = (n - 2) / 2 * math.log1p(n) - (n - 1) / 2 * np.log1p(n * (1 - explained))
    is_early = moves.end <= early
    is_short = ~is_early & (moves.end - moves.begin <= short)
    is_long = ~is_early & ~is_short
    step, drift = _log_mean(factors[is_short]), _log_mean(factors[is_long])
    offset = _log_mean(np.array([0.0, _log_mean(factors[is_early])]))
    weights = np.exp(np.array([offset, step, drift]) - max(offset, step, drift))
    likely = np.flatnonzero(is_early | (is_short if step >= drift else is_long))
    best = int(likely[np.argmax(factors[likely])])
    shares = weights / weights.sum()
    return Odds(
        offset=float(shares[0]),
        step=float(shares[1]),
        drift=float(shares[2]),
        begin=int(moves.begin[best]),
        end=int(moves.end[best]),
    )


@lru_cache(maxsize=4)
def _moves(num: int) -> _Moves:
    places = np.unique(np.linspace(0, num, _GRID + 1).astype(np.int64)).tolist()
    steps = range(MIN_WINDOW, num - MIN_WINDOW + 1)
    ramps = [(a, b) for a in places for b in places if b - a >= 2 * MIN_WINDOW]
    moves = np.array([*((at, at) for at in steps), *ramps], dtype=np.int64)
    begin, end = moves[:, :1], moves[:, 1:]
    time = np.arange(num, dtype=np.float64)
    ramp = np.clip((time - begin) / np.maximum(end - begin, 1), 0, 1)
    share = np.where(end > begin, ramp, (time >= begin).astype(np.float64))
    return _Moves(begin[:, 0], end[:, 0], share)


def _explained(values: FloatArray, regressors: FloatArray, correlation: float) -> FloatArray:
    """Return R^2 [m] of ``values`` [n] on a level and each regressor [m, n], all whitened."""
    whitened = values[1:] - correlation * values[:-1]
    moves = regressors[:, 1:] - correlation * regressors[:, :-1]
    centred = whitened - whitened.mean()
    moves = moves - moves.mean(axis=1, keepdims=True)
    tiny = float(np.finfo(np.float64).tiny)
    size = np.maximum((moves * moves).sum(axis=1), tiny)
    share: FloatArray = (moves @ centred) ** 2 / size / max(float(centred @ centred), tiny)
    return np.clip(share, 0.0, 1.0)


def _around(values: FloatArray, share: FloatArray) -> FloatArray:
    """Return what a level and one move leave of a series [n]."""
    moves = share - share.mean()
    size = float(moves @ values) / max(float(moves @ moves), float(np.finfo(np.float64).tiny))
    rest: FloatArray = values - values.mean() - size * moves
    return rest


def _log_mean(logs: FloatArray) -> float:
    """Return the logarithm of the mean of e to these powers; minus infinity of none."""
    if not len(logs):
        return -math.inf
    largest = float(logs.max())
    return largest + math.log(float(np.exp(logs - largest).mean()))
