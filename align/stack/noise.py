"""Random numbers that depend on what they are for, not on what was drawn before.

Each number is a hash of its place: seed, step, row, sample, position and token. So a response
does not depend on which others are generated with it, and a resumed run draws what it would have
drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), 0xBF58476D1CE4E5B9), (np.uint64(27), 0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)

Keys = npt.NDArray[np.uint64]


def keys(seed: int, step: int, places: Sequence[tuple[int, ...]]) -> Keys:
    """Return one 64-bit key per place, such as (row index, number of the sample).

    Returns:
        [len(places)].
    """
    state: Keys = np.zeros(len(places), np.uint64)
    columns = [(seed,) * len(places), (step,) * len(places), *zip(*places, strict=True)]
    for column in columns:
        part = np.array([value & 0xFFFFFFFFFFFFFFFF for value in column], np.uint64)
        state = _mixed(state ^ _mixed(part + _GOLDEN))
    return state


def gumbel(keys: Keys, position: int, vocab_size: int) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise; the argmax of log_probs + noise is a sample.

    Returns:
        float64 [len(keys), vocab_size].

    Source: splitmix64 as the hash; Gumbel noise is -log(-log(u)), u uniform in (0, 1).
    """
    at = _mixed(keys ^ _mixed(np.array([position], np.uint64) + _GOLDEN))
    tokens = _mixed(np.arange(vocab_size, dtype=np.uint64) + _GOLDEN)
    bits = _mixed(at[:, None] ^ tokens[None, :]) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _mixed(state: Keys) -> Keys:
    for shift, factor in _MIX:
        state = (state ^ (state >> shift)) * np.uint64(factor)
    return state ^ (state >> _LAST_SHIFT)
