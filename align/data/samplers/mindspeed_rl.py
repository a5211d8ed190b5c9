"""MindSpeed-RL since 2025-05-16 (12fdd5e), releases 2.0.0 to 2.3.0 and master.

The index repeats the rows in file order as often as ``train_iters`` needs, and one permutation
goes over all of it: ``train_iters`` changes the order only through the number of repeats. An index
file left over from another run is taken as it is: a stale one replays an old shuffle.

Source: `PromptDataset` (no_shuffle=True), `_build_index_mappings`, `PromptDataLoader`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.data.torch_generator import Int64, TorchGenerator


@dataclass(frozen=True, slots=True)
class MindSpeedRL:
    """A single epoch that holds all steps.

    Args:
        num_samples: ``train_iters * global_batch_size``.
        index: the cached ``*_decoder_packed_shuffle_idx.npy``, where a run had one.
    """

    num_rows: int
    num_samples: int
    seed: int
    shuffle: bool = True
    index: tuple[int, ...] | None = None
    name: str = "MindSpeed-RL PromptDataLoader"

    @property
    def num_repeats(self) -> int:
        """How often every row is in the index."""
        return max(1, -(-self.num_samples // self.num_rows))

    @property
    def epoch_length(self) -> int:
        """Entries of the index."""
        return self.num_repeats * self.num_rows if self.index is None else len(self.index)

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the only pass; every number gives the same, as the loader is made anew."""
        places: Int64 = np.arange(self.epoch_length, dtype=np.int64)[:stop]
        if self.shuffle:
            places = TorchGenerator(self.seed).randperm(self.epoch_length, stop)
        return places % self.num_rows if self.index is None else np.array(self.index)[places]
