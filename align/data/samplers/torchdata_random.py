"""torchdata's RandomSampler under a StatefulDataLoader: verl since 0.7.

Its iterator draws a permutation when it is made. With worker processes the loader makes it twice
before every epoch, so that one permutation is thrown away each time: 0 workers and 8 workers see
different rows, 1 and 8 the same. Resuming restores generator and position: the order goes on.

Source: torchdata 0.11 `_StatefulRandomSamplerIterator`, `StatefulDataLoader`; verl
`create_rl_sampler`.
"""

from __future__ import annotations

from dataclasses import dataclass

from align.data.torch_generator import UNSEEDED, Int64, TorchGenerator


@dataclass(frozen=True, slots=True)
class TorchdataRandom:
    """One generator for all epochs."""

    num_rows: int
    seed: int = UNSEEDED
    num_workers: int = 8
    name: str = "torchdata RandomSampler"

    @property
    def epoch_length(self) -> int:
        """All rows."""
        return self.num_rows

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the epoch's permutation."""
        generator = TorchGenerator(self.seed)
        skipped = 2 * number + 1 if self.num_workers > 0 else number
        generator.skip_permutations(self.num_rows, skipped)
        return generator.randperm(self.num_rows, stop)
