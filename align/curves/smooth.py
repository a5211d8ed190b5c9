"""Centred moving averages over steps."""

from __future__ import annotations

import numpy as np

from align.core.threshold import Threshold
from align.curves.pair import FloatArray, IntArray

WINDOW_AT_500_STEPS = Threshold(
    21, source="two identical 500-step reward curves (sigma 0.02) differ by 0.4 % smoothed over 20"
)
MIN_WINDOW = 5


def window_for(num_steps: int) -> int:
    """Return the odd window for a run: 21 at 500 steps, in proportion below, 5 at least."""
    longest = int(WINDOW_AT_500_STEPS.value)
    proportional = 2 * round(num_steps * longest / 1000) + 1
    return min(longest, max(MIN_WINDOW, proportional))


def smooth(values: FloatArray, window: int) -> FloatArray:
    """Average each step with its neighbours; at both ends the window is cut off.

    Args:
        values: float64 [..., n].
        window: odd number of steps.

    Returns:
        float64 [..., n]. NaN and infinities are left out of the averages; a step without any
        number in its window is NaN.
    """
    present = np.isfinite(values)
    if present.all():
        whole: FloatArray = _centred_sums(values, window) / counts(values.shape[-1], window)
        return whole
    sums = _centred_sums(np.where(present, values, 0.0), window)
    covered = _centred_sums(present.astype(np.float64), window)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(covered > 0.5, sums / covered, np.nan)


def counts(num_steps: int, window: int) -> FloatArray:
    """float64 [n]: how many steps the average at each step covers."""
    low, high = _bounds(num_steps, window)
    return (high - low).astype(np.float64)


def _centred_sums(values: FloatArray, window: int) -> FloatArray:
    low, high = _bounds(values.shape[-1], window)
    zero = np.zeros((*values.shape[:-1], 1))
    cumulated = np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)
    sums: FloatArray = cumulated[..., high] - cumulated[..., low]
    return sums


def _bounds(num_steps: int, window: int) -> tuple[IntArray, IntArray]:
    steps, half = np.arange(num_steps), window // 2
    return np.maximum(steps - half, 0), np.minimum(steps + half + 1, num_steps)
