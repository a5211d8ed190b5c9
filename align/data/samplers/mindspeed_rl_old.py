"""MindSpeed-RL before 2025-05-16: numpy shuffles the index, and the loader reads it in order.

``train_iters`` only says how many epochs are appended: the first epoch never depends on it.

Source: `_build_index_mappings` with no_shuffle=False, then a sequential sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.data.torch_generator import Int64


@dataclass(frozen=True, slots=True)
class MindSpeedRLOld:
    """A single epoch that holds all steps."""

    num_rows: int
    num_samples: int
    seed: int
    name: str = "MindSpeed-RL of before 2025-05"

    @property
    def num_repeats(self) -> int:
        """How many shuffles of the rows are appended to each other."""
        return max(1, -(-self.num_samples // self.num_rows))

    @property
    def epoch_length(self) -> int:
        """Entries of the index."""
        return self.num_repeats * self.num_rows

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the only pass."""
        random = np.random.RandomState(self.seed)
        parts = [np.arange(self.num_rows) for _ in range(self.num_repeats)]
        for part in parts:
            random.shuffle(part)
        index: Int64 = np.concatenate(parts)
        return index[:stop]
