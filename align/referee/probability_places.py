"""Places where alone two log_probs of the same tokens differ: one off, first tokens, chunk ends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from align.core.threshold import Threshold
from align.referee.gradient_norms import SAME_LOG_PROBS

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

CONCENTRATED = Threshold(
    10.0, "independent errors, even of Student's t with 2 degrees, stay below it in simulation"
)
"""How many times larger the mean difference at a place must be than elsewhere."""

SIZES = (2, 4, 8, 16)
"""Context parallel sizes tried."""

_FEWEST = 30  # tokens compared after a shift
_FEW = 8  # first tokens, or tokens at chunk ends
_SHARE = 0.9  # of them that have to differ


def shift_of(trainer: FloatArray, rollout: FloatArray, own: BoolArray) -> int | None:
    """Return k of -1 and 1 where the trainer's j + k is the rollout's j; None where neither is.

    Args:
        trainer, rollout: float64 [b, r], nats.
        own: bool [b, r], where a token counts.
    """
    for shift in (-1, 1):
        moved, there = np.roll(trainer, -shift, axis=1), np.roll(own, -shift, axis=1)
        both = own & there
        both[:, -1 if shift == 1 else 0] = False
        if both.sum() >= _FEWEST and np.abs(moved - rollout)[both].mean() <= SAME_LOG_PROBS.value:
            return shift
    return None


def first_tokens(apart: FloatArray, own: BoolArray) -> float | None:
    """Return the mean absolute difference of the rows' first tokens where they alone differ.

    Args:
        apart: float64 [b, r], trainer less rollout.
        own: bool [b, r], where a token counts.
    """
    first = own & (np.cumsum(own, axis=1) == 1)
    size = np.abs(apart)
    return None if _explained(size, first, own) is None else float(size[first].mean())


def context_parallel_size(apart: FloatArray, own: BoolArray, attention: BoolArray) -> int | None:
    """Return n where the difference lies at the ends of 2 n chunks of a row alone, else None.

    Context parallelism of size n cuts a row into 2 n equal chunks, the padded row or its own
    tokens; the token after an end is predicted without what lies in another chunk.

    Args:
        apart: float64 [b, r], trainer less rollout.
        own: bool [b, r], where a response token counts.
        attention: bool [b, p + r], where there is a token.
    """
    width = apart.shape[1]
    attended = attention.astype(np.int64)
    tokens = (np.cumsum(attended, axis=1) - attended)[:, -width:]
    columns = np.broadcast_to(np.arange(attention.shape[1]), attention.shape)[:, -width:]
    lengths = attended.sum(axis=1)[:, None]
    whole = np.full_like(lengths, attention.shape[1])
    found = []
    for n in SIZES:
        for place, length in ((tokens, lengths), (columns, whole)):
            chunk = -(-length // (2 * n))
            ends = own & (place > 0) & (chunk >= 4) & (place % np.maximum(chunk, 1) == 0)
            if (explained := _explained(np.abs(apart), ends, own)) is not None:
                found.append((explained, -n, n))
    return max(found)[2] if found else None


def _explained(size: FloatArray, ends: BoolArray, own: BoolArray) -> float | None:
    """Return the share of all difference that lies at a place; None if it is not its alone."""
    elsewhere = own & ~ends
    if ends.sum() < _FEW or not elsewhere.any():
        return None
    limit = SAME_LOG_PROBS.value
    here, rest = float(size[ends].mean()), float(size[elsewhere].mean())
    alone = rest <= limit < here and here >= CONCENTRATED.value * rest
    if not alone or np.mean(size[ends] > limit) < _SHARE:
        return None
    return float(size[ends].sum() / size[own].sum())
