"""torch's CPU random generator, bit for bit and without torch.

Source: torch 2.x, `at::mt19937`, `CPUGeneratorImpl` and `randperm_cpu`; the engine is the Mersenne
Twister that numpy has too, seeded as numpy's `RandomState` seeds it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

UNSEEDED = 67280421310721
"""Seed of a `torch.Generator()` that nobody seeds: a constant, so its order repeats as well."""

_MASK32 = 0xFFFFFFFF
_MASK63 = (1 << 63) - 1
# From here on a 32-bit draw would be visibly skewed, and torch draws 64 bits.
_FIRST_64_BIT_LENGTH = _MASK32 // 20


class TorchGenerator:
    """A ``torch.Generator(device="cpu")``: the same seed gives the same draws.

    Args:
        seed: any integer ``manual_seed`` takes; the engine uses its low 32 bits, as in torch.
    """

    def __init__(self, seed: int = UNSEEDED) -> None:
        seeded = np.random.RandomState(seed & _MASK32).get_state(legacy=False)
        self._engine = np.random.MT19937()
        self._engine.state = {"bit_generator": "MT19937", "state": seeded["state"]}

    def randperm(self, n: int, stop: int | None = None) -> Int64:
        """Return the first ``stop`` values of ``torch.randperm(n)``, all of them by default.

        The generator moves on as if all had been drawn.
        """
        stop = n if stop is None else min(stop, n)
        num_swaps = min(stop, n - 1) if n else 0
        draws = self._draw(num_swaps, n) % np.arange(n, n - num_swaps, -1, dtype=np.uint64)
        partners = draws.astype(np.int64) + np.arange(num_swaps)
        self._skip(max(0, n - 1 - num_swaps), n)
        values = list(range(n))
        for i, partner in enumerate(partners.tolist()):
            values[i], values[partner] = values[partner], values[i]
        return np.array(values[:stop], np.int64)

    def skip_permutations(self, n: int, count: int) -> None:
        """Move on as ``count`` calls of ``randperm(n)`` would."""
        self._skip(max(0, n - 1) * count, n)

    def draw_seed(self) -> int:
        """Return ``torch.empty((), dtype=torch.int64).random_().item()``.

        `RandomSampler` without a generator seeds its own with such a draw, every epoch anew.
        """
        high, low = self._engine.random_raw(2).tolist()
        return int((high << 32 | low) & _MASK63)

    def _draw(self, count: int, n: int) -> npt.NDArray[np.uint64]:
        if n < _FIRST_64_BIT_LENGTH:
            return self._engine.random_raw(count)
        halves = self._engine.random_raw(2 * count)
        return halves[0::2] << np.uint64(32) | halves[1::2]

    def _skip(self, count: int, n: int) -> None:
        self._engine.random_raw(count * (1 if n < _FIRST_64_BIT_LENGTH else 2), output=False)
