"""Moving-block bootstrap of a series of paired differences; seeded, so the same bytes each time."""

from __future__ import annotations

import math

import numpy as np

from align.curves.noise import lag_one_autocorrelation, standard_error, t_quantile
from align.curves.pair import FloatArray

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 20250301


def block_length(values: FloatArray) -> int:
    """Return the block length for a series [n], between 1 and n / 4.

    Source: Carlstein 1986 for first-order autocorrelation r,
    (sqrt(6) r / (1 - r^2))^(2/3) n^(1/3), rounded up.
    """
    num = len(values)
    correlation = lag_one_autocorrelation(values)
    length: float = (math.sqrt(6) * correlation / (1 - correlation**2)) ** (2 / 3) * num ** (1 / 3)
    return max(1, min(math.ceil(length), num // 4))


def resample(values: FloatArray, length: int) -> FloatArray:
    """Draw series of overlapping blocks (Künsch 1989).

    Args:
        values: float64 [n].
        length: steps a block, at most n.

    Returns:
        float64 [NUM_RESAMPLES, n].
    """
    num = len(values)
    generator = np.random.default_rng(SEED)
    starts = generator.integers(0, num - length + 1, (NUM_RESAMPLES, math.ceil(num / length)))
    steps = (starts[:, :, None] + np.arange(length)).reshape(NUM_RESAMPLES, -1)[:, :num]
    return values[steps]


def mean_interval(
    values: FloatArray, length: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the interval of a series' mean: the bootstrap's, or Student's where that is wider.

    Blocks of a short, autocorrelated series hold too little of its slow variation; Student's t
    with the effective number of values (`noise.effective_size`) allows for that.
    """
    low, high = interval(resample(values, length).mean(axis=-1), confidence)
    error, freedom = standard_error(values)
    mean, reach = float(values.mean()), t_quantile(confidence, freedom) * error
    return min(low, mean - reach), max(high, mean + reach)


def interval(statistics: FloatArray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the percentile interval of resampled statistics."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(statistics, (tail, 1 - tail))
    return float(low), float(high)
