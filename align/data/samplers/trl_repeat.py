"""TRL's RepeatSampler, of GRPO and RLOO: each row once a generation batch, repeats left out.

Source: TRL 1.16 `RepeatSampler`: one permutation an epoch from one generator, cut into batches of
``generation_batch_size // num_generations`` rows; an incomplete batch is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from align.data.torch_generator import UNSEEDED, Int64, TorchGenerator


@dataclass(frozen=True, slots=True)
class TrlRepeat:
    """A step is one generation batch: it serves several optimizer steps."""

    num_rows: int
    seed: int = UNSEEDED
    name: str = "TRL RepeatSampler"

    @property
    def epoch_length(self) -> int:
        """All rows."""
        return self.num_rows

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the epoch's permutation."""
        generator = TorchGenerator(self.seed)
        generator.skip_permutations(self.num_rows, number)
        return generator.randperm(self.num_rows, stop)
