"""What chance alone does to the mean of an autocorrelated series; numpy and closed forms only."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from align.core.threshold import Threshold
from align.curves.pair import FloatArray

FAMILY_ALPHA = Threshold(
    0.01, source="one false alarm in a hundred clean pairs, over all metrics tested together"
)
_MAX_AUTOCORRELATION = 0.97  # beyond it a short series cannot be told from a random walk


def detrended(values: FloatArray) -> FloatArray:
    """Return a series [n] minus its least-squares line: a drift is not noise."""
    time = np.arange(len(values)) - (len(values) - 1) / 2
    residual: FloatArray = values - values.mean()
    return residual - time * (time @ residual) / max(float(time @ time), 1.0)


def lag_one_autocorrelation(values: FloatArray) -> float:
    """Estimate the lag-one autocorrelation of a series [n] around its line, within 0..0.97.

    Negative estimates count as 0: they would narrow intervals. Source: sample autocorrelation
    plus (2 + 4 r) / n against its small-sample bias around a line (Marriott and Pope 1954).
    """
    residual = detrended(values)
    total = float(residual @ residual)
    if len(values) < 4 or total <= 0:
        return 0.0
    raw = float(residual[1:] @ residual[:-1]) / total
    return min(max(raw + (2 + 4 * raw) / len(values), 0.0), _MAX_AUTOCORRELATION)


def effective_size(values: FloatArray) -> float:
    """Return how many independent values a series [n] is worth, at least 2.

    Source: n (1 - r) / (1 + r) for first-order autocorrelation r (Bartlett 1935; "equivalent
    sample size", Zwiers and von Storch 1995).
    """
    correlation = lag_one_autocorrelation(values)
    return max(2.0, len(values) * (1 - correlation) / (1 + correlation))


def cautious_size(values: FloatArray) -> float:
    """Return `effective_size` for the `cautious_autocorrelation`."""
    correlation = cautious_autocorrelation(values)
    return max(2.0, len(values) * (1 - correlation) / (1 + correlation))


def cautious_autocorrelation(values: FloatArray) -> float:
    """Return the autocorrelation of a series [n], one standard error higher.

    Few steps say little about their own autocorrelation, and what is taken too low there makes a
    wandering series look shifted. Source of the standard error: sqrt((1 - r^2) / n), Bartlett 1946.
    """
    correlation = lag_one_autocorrelation(values)
    higher = correlation + math.sqrt((1 - correlation**2) / len(values))
    return min(higher, _MAX_AUTOCORRELATION)


def standard_error(values: FloatArray) -> tuple[float, float]:
    """Return the standard error of the mean of a series [n], n >= 3, and its degrees of freedom."""
    size = effective_size(values)
    return deviation(values) / math.sqrt(size), size - 1


def deviation(values: FloatArray) -> float:
    """Return the standard deviation of a series [n], n >= 3, around its line."""
    residual = detrended(values)
    return math.sqrt(float(residual @ residual) / (len(values) - 2))


def error_of_average(values: FloatArray, num: int, correlation: float | None = None) -> float:
    """Return the standard error of the average of ``num`` successive steps like these [n].

    With the `cautious_autocorrelation` unless one is given. Source: variance of the mean of a
    first-order autoregression, s^2 / num ((1 + r) / (1 - r) - 2 r (1 - r^num) / (num (1 - r)^2)).
    Unlike s^2 over the effective number it stays below s^2 for few steps.
    """
    r = cautious_autocorrelation(values) if correlation is None else correlation
    share = (1 + r) / (1 - r) - 2 * r * (1 - r**num) / (num * (1 - r) ** 2)
    return deviation(values) * math.sqrt(share / num)


def p_value(values: FloatArray) -> float:
    """Return the two-sided probability of a mean this far from 0 if the true mean is 0.

    A series that never varies has p = 1 at mean 0, else p = 0.
    """
    error, freedom = standard_error(values)
    if error == 0:
        return 1.0 if values.mean() == 0 else 0.0
    return two_sided_t(abs(float(values.mean())) / error, freedom)


def two_sided_t(t: float, freedom: float) -> float:
    """Return P(|T| > t) for Student's t.

    Source: Wallace 1959: z = (8 v + 1) / (8 v + 3) sqrt(v log(1 + t^2 / v)) is nearly normal.
    """
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.erfc(z / math.sqrt(2))


def t_quantile(confidence: float, freedom: float) -> float:
    """Return the t with P(|T| <= t) = ``confidence``: `two_sided_t` solved for t."""
    z = NormalDist().inv_cdf((1 + confidence) / 2) * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


def holm(p_values: list[float]) -> list[float]:
    """Adjust p-values of a family of tests (Holm 1979); order is kept."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, running = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def step_noise(values: FloatArray) -> float:
    """Estimate the standard deviation of one step from successive differences of a series [n].

    A slow trend does not count as noise. Source: von Neumann 1941, sqrt(mean(diff^2) / 2), over
    sqrt(1 - r), which undoes what first-order autocorrelation r takes off the differences.
    """
    return scatter(values) / math.sqrt(1 - lag_one_autocorrelation(values))


def scatter(values: FloatArray) -> float:
    """Return sqrt(mean(diff^2) / 2) of a series [n]: its noise from step to step."""
    return math.sqrt(float(np.mean(np.diff(values) ** 2)) / 2) if len(values) > 1 else 0.0
