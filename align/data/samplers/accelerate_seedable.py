"""accelerate's SeedableRandomSampler: Hugging Face's Trainer and TRL's SFT, DPO and reward runs.

Every epoch is a permutation of its own, of seed + epoch. A resumed run that forgets the epoch
replays the first one (accelerate#2823).

Source: accelerate 1.15 `SeedableRandomSampler`.
"""

from __future__ import annotations

from dataclasses import dataclass

from align.data.torch_generator import Int64, TorchGenerator


@dataclass(frozen=True, slots=True)
class AccelerateSeedable:
    """The seed is data_seed, else the Trainer's seed."""

    num_rows: int
    seed: int = 42
    name: str = "accelerate SeedableRandomSampler"

    @property
    def epoch_length(self) -> int:
        """All rows."""
        return self.num_rows

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the epoch's permutation."""
        return TorchGenerator(self.seed + number).randperm(self.num_rows, stop)
