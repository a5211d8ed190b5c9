"""Where a series changes its level, and whether it does so late in the run beyond its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from align.core.threshold import Threshold
from align.curves.noise import (
    cautious_size,
    error_of_average,
    scatter,
    two_sided_t,
)
from align.curves.pair import FloatArray
from align.curves.smooth import MIN_WINDOW

MIN_EFFECTIVE_SIZE = Threshold(
    10, source="with 5, one clean pair in ten of 58 steps and autocorrelation 0.9 looked shifted"
)
UNMISTAKABLE = Threshold(
    10.0,
    source="30 steps of autocorrelation 0.97, the greatest allowed for, have a mean 9 of their own "
    "standard deviations off once in a thousand",
)


@dataclass(frozen=True, slots=True)
class LateChange:
    """A change of level that lasts to the end.

    Args:
        at: index of the first value of the new level.
        earlier: mean of the values before.
        size: mean of the values since, minus that.
        noise: standard deviation of one step, of the noisier part.
        p: probability of such a change by chance, anywhere it was looked for.
    """

    at: int
    earlier: float
    size: float
    noise: float
    p: float


def change_point(values: FloatArray, first: int = MIN_WINDOW) -> int:
    """Return the index of the first value of the second of two levels.

    The split that explains a series [n] best as two levels, each of 5 values at least and the
    earlier one of ``first``; 0 where it is too short for that. Source: largest
    |difference of means| sqrt(k (n - k) / n), least squares for one step (Hinkley 1970).
    """
    num = len(values)
    splits = np.arange(first, num - MIN_WINDOW + 1)
    if not len(splits):
        return 0
    sums = np.cumsum(values)
    before, after = sums[splits - 1] / splits, (sums[-1] - sums[splits - 1]) / (num - splits)
    return int(splits[np.argmax(np.abs(after - before) * np.sqrt(splits * (num - splits)))])


def late_change(values: FloatArray) -> LateChange | None:
    """Find a change of level in the last three quarters of a series [n] that lasts to its end.

    The new level must be 5 steps long, hold at most of them and at the end, and lie farther from 0
    than the old one. Both parts' noise counts, and p allows for all places a change was looked for
    (Bonferroni). None where the steps before are worth fewer than ten independent ones, unless
    nearly all since are farther out than any wandering goes: then p is 0.
    """
    first = max(len(values) // 4, int(MIN_EFFECTIVE_SIZE.value))
    at = change_point(values, first)
    before, since = values[:at], values[at:]
    unmistakable = bool(at) and _is_unmistakable(before, since)
    if not at or not (unmistakable or cautious_size(before) >= MIN_EFFECTIVE_SIZE.value):
        return None
    earlier, level = float(before.mean()), float(since.mean())
    size = level - earlier
    if not _holds(since, earlier, size) or level * size < size * size / 2:
        return None
    num_places = len(values) - MIN_WINDOW + 1 - first
    p = 0.0 if unmistakable else min(1.0, num_places * _chance(before, since))
    noise = max(float(before.std()), float(_recent(before).std()), scatter(since))
    return LateChange(at, earlier, size, noise, p)


def _holds(since: FloatArray, earlier: float, size: float) -> bool:
    """Tell whether most steps, and the last half, are at least half-way to the new level."""
    middle = float(np.median(since)), float(since[len(since) // 2 :].mean())
    return all((value - earlier) * size >= size * size / 2 for value in middle)


def _is_unmistakable(before: FloatArray, since: FloatArray) -> bool:
    """Tell whether 95 of 100 values since are 10 standard deviations off one way."""
    low, high = np.quantile(since - before.mean(), (0.05, 0.95))
    return max(float(low), -float(high)) > UNMISTAKABLE.value * float(before.std())


def _recent(before: FloatArray) -> FloatArray:
    return before[-max(int(MIN_EFFECTIVE_SIZE.value), len(before) // 4) :]


def _chance(before: FloatArray, since: FloatArray) -> float:
    """Return the two-sided p of two levels at one place.

    The few steps of the later level are expected to be as noisy as all before, as the last quarter
    of those, or as they are themselves, whichever is most: noise often grows with training.
    """
    num = len(since)
    expected = max(error_of_average(part, num) for part in (before, _recent(before), since))
    error = math.hypot(error_of_average(before, len(before)), expected)
    size = abs(float(since.mean() - before.mean()))
    return two_sided_t(size / error, cautious_size(before) - 1) if error else float(size == 0)
