"""What two log_probs of the same tokens differ by: the shape of a difference tells its cause.

Pure functions of float64 [b, r] in nats, with bool [b, r] masks of the tokens that count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from align.core.threshold import Threshold
from align.referee.gradient_norms import SAME_LOG_PROBS

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

CONCENTRATED = Threshold(
    10.0, "simulated: independent errors, even of Student's t with 2 degrees, stay below it"
)
_SHARE = 0.9  # of the tokens of a place that have to differ, or lie on one side
_FEWEST = 30  # tokens of a regression
_FEW = 8  # tokens of a place
_SIGMAS = 5.0
_LEAST_MASS = 0.5  # no recipe samples from less
_SIZES = (2, 4, 8, 16)  # context parallel sizes people use
_OFFSETS = (0, 1)  # the token of a boundary, and the one predicted from it


class Shape(str, Enum):
    """What a difference looks like."""

    NONE = "none"
    SHIFTED = "shifted"
    FIRST_TOKEN = "first token"
    BOUNDARIES = "boundaries"
    TRUNCATED = "truncated"
    TEMPERATURE = "temperature"
    OTHER = "other"


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where response tokens stand.

    Args:
        tokens: int64 [b, r], tokens before this one in its own row, padding left out.
        lengths: int64 [b], tokens of a row, prompt included.
        columns: int64 [b, r], columns before this one, padding included.
        width: columns of a row.
    """

    tokens: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    width: int


@dataclass(frozen=True, slots=True)
class Spikes:
    """Differences at the boundaries of a row's chunks and nowhere else.

    Args:
        chunks: that a row is cut into.
        at, elsewhere: mean absolute difference there and at all other tokens.
        explained: share of the sum of absolute differences.
    """

    chunks: int
    at: float
    elsewhere: float
    explained: float


@dataclass(frozen=True, slots=True)
class Survivors:
    """Log S of a vocabulary cut to its survivors: the engine's log_probs are higher by it.

    Args:
        mean: of log S, at most 0.
        least_mass: smallest probability that survived at a token; top_p is its lower bound.
    """

    mean: float
    least_mass: float


@dataclass(frozen=True, slots=True)
class Line:
    """Bounds of the slope of y on x where both have errors, the least and the greatest.

    Source: Frisch 1934: it lies between the regression of y on x and the inverse of x on y.
    """

    low: float
    high: float
    error: float

    @property
    def is_not_one(self) -> bool:
        """Whether both bounds lie on one side of 1 beyond chance."""
        margin = _SIGMAS * self.error
        return self.low > 1 + margin or self.high < 1 - margin


def places(attention: FloatArray, width: int) -> Places:
    """Number the last ``width`` columns.

    Args:
        attention: [b, p + r], not 0 where there is a token.
    """
    attended = (attention != 0).astype(np.int64)
    before = np.cumsum(attended, axis=1) - attended
    columns = np.broadcast_to(np.arange(attention.shape[1]), attention.shape)
    return Places(
        before[:, -width:], attended.sum(axis=1), columns[:, -width:], attention.shape[1]
    )


def shift_between(own: FloatArray, other: FloatArray, mask: BoolArray) -> int | None:
    """Return k of -1 and 1 where ``own[:, j + k]`` is ``other[:, j]``; None where neither is."""
    for shift in (-1, 1):
        moved = np.roll(own, -shift, axis=1)
        here = mask & np.roll(mask, -shift, axis=1)
        here[:, -1 if shift == 1 else 0] = False
        if here.sum() >= _FEWEST and np.abs(moved - other)[here].mean() <= SAME_LOG_PROBS.value:
            return shift
    return None


def at_first_token(apart: FloatArray, mask: BoolArray) -> tuple[float, float] | None:
    """Return the mean absolute difference at first tokens and elsewhere, where they alone differ.

    Args:
        apart: float64 [b, r].
    """
    first = mask & (np.cumsum(mask, axis=1) == 1)
    return _concentrated(np.abs(apart), first, mask & ~first)


def at_boundaries(
    apart: FloatArray, mask: BoolArray, where: Places, sizes: Iterable[int] = (), multiple: int = 1
) -> Spikes | None:
    """Find the chunks at whose boundaries alone the difference lies; None where there are none.

    Context parallelism of size n cuts a row into 2 n chunks: a whole padded row, or each row's own
    tokens, padded to a multiple.

    Args:
        sizes: n declared by the run; others are tried too.
        multiple: to which the chunks of a row are padded, the tensor parallel size.
    """
    size = np.abs(apart)
    total = float(size[mask].sum())
    found: list[Spikes] = []
    for chunks in sorted({2 * n for n in (*_SIZES, *sizes) if n > 1}):
        own = -(-where.lengths // (chunks * multiple)) * multiple
        whole = np.full_like(own, -(-where.width // chunks))
        for position, length in ((where.tokens, own), (where.columns, whole)):
            for offset in _OFFSETS:
                ahead = position - offset
                at = mask & (ahead > 0) & (length[:, None] >= 4)
                at &= ahead % np.maximum(length, 1)[:, None] == 0
                means = _concentrated(size, at, mask & ~at)
                if means is not None:
                    found.append(Spikes(chunks, *means, float(size[at].sum()) / total))
    return max(found, key=lambda each: each.explained, default=None)


def survivors(trainer: FloatArray, engine: FloatArray, mask: BoolArray) -> Survivors | None:
    """Measure log S where the engine's log_probs are higher and never lower; None elsewhere."""
    log_mass = (trainer - engine)[mask]
    if np.mean(log_mass <= SAME_LOG_PROBS.value) < 0.99:
        return None
    least = math.exp(float(np.quantile(log_mass, 0.002)))  # a token of 500 aside, for rounding
    return Survivors(float(log_mass.mean()), least) if least >= _LEAST_MASS else None


def line_between(x: FloatArray, y: FloatArray) -> Line:
    """Bound the slope of y on x; it stays between 0 and infinity where x is flat.

    Args:
        x, y: float64 [n].
    """
    slope, error = regression(x, y)
    inverse, _ = regression(y, x)
    if not math.isfinite(error) or slope <= 0 or inverse <= 0:
        return Line(0.0, math.inf, math.inf)
    return Line(*sorted((slope, 1 / inverse)), error)


def regression(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Fit y = a + slope · x; return the slope and its standard error, infinite where x is flat."""
    spread = float(((x - x.mean()) ** 2).sum())
    if len(x) < _FEWEST or not spread > 0:
        return 1.0, math.inf
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    residual = y - y.mean() - slope * (x - x.mean())
    return slope, math.sqrt(float((residual**2).sum()) / (len(x) - 2) / spread)


def _concentrated(
    size: FloatArray, at: BoolArray, elsewhere: BoolArray
) -> tuple[float, float] | None:
    if at.sum() < _FEW or not elsewhere.any():
        return None
    here, rest = float(size[at].mean()), float(size[elsewhere].mean())
    limit = SAME_LOG_PROBS.value
    alone = rest <= limit < here and here >= CONCENTRATED.value * rest
    return (here, rest) if alone and np.mean(size[at] > limit) >= _SHARE else None
