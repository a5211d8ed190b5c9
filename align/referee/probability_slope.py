"""Two log_probs of the same tokens that differ everywhere: another temperature, or log S alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.referee.gradient_norms import SAME_LOG_PROBS

FloatArray = npt.NDArray[np.float64]

_FEWEST = 30
_SIGMAS = 5.0
_ONE_SIDED = 0.99  # share of the tokens that have to lie on one side
_LEAST_MASS = 0.5  # a recipe that samples from less is taken for a temperature


@dataclass(frozen=True, slots=True)
class Slope:
    """Bounds of a slope where both quantities have errors, and whether 1 lies beyond chance."""

    low: float
    high: float
    is_one: bool


@dataclass(frozen=True, slots=True)
class Survivors:
    """What a vocabulary cut to its survivors leaves.

    Args:
        mean: by how much the engine's log_probs are higher on average, nats: mean of -log S.
        least_mass: probability of the survivors at the token that lost most, 1 in 100 aside; top_p
            is its lower bound.
    """

    mean: float
    least_mass: float


def slope_between(x: FloatArray, y: FloatArray) -> Slope:
    """Bound the slope of y on x.

    Errors of x alone make the regression too flat, so that noise of both would look like a
    temperature: the slope lies between the regression of y on x and the inverse of that of x on y.
    Source: Frisch, "Statistical Confluence Analysis", 1934.

    Args:
        x, y: float64 [n].
    """
    slope, error = regression(x, y)
    inverse, inverse_error = regression(y, x)
    if not (math.isfinite(error) and math.isfinite(inverse_error) and slope > 0 and inverse > 0):
        return Slope(0.0, math.inf, True)
    bounds = sorted(((slope, error), (1 / inverse, inverse_error / inverse**2)))
    (low, low_error), (high, high_error) = bounds
    is_steeper, is_flatter = low > 1 + _SIGMAS * low_error, high < 1 - _SIGMAS * high_error
    return Slope(low, high, not is_steeper and not is_flatter)


def regression(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Fit y = a + slope · x; return the slope and its standard error, infinite where x is flat."""
    spread = float(((x - x.mean()) ** 2).sum())
    if len(x) < _FEWEST or not spread > 0:
        return 1.0, math.inf
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    residual = y - y.mean() - slope * (x - x.mean())
    return slope, math.sqrt(float((residual**2).sum()) / (len(x) - 2) / spread)


def survivors(trainer: FloatArray, engine: FloatArray) -> Survivors | None:
    """Measure S where the engine's log_probs are higher and never lower; None elsewhere.

    Args:
        trainer, engine: float64 [n], nats.
    """
    log_mass = trainer - engine
    if np.mean(log_mass <= SAME_LOG_PROBS.value) < _ONE_SIDED or log_mass.mean() >= 0:
        return None
    least = math.exp(float(np.quantile(log_mass, 1 - _ONE_SIDED)))
    return Survivors(-float(log_mass.mean()), least) if least >= _LEAST_MASS else None
