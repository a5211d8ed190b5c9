"""torch's RandomSampler with a generator of its own: verl up to 0.6.

After each permutation it draws a second one of which it takes nothing, so epoch e is the
permutation number 2e of one generator.

Source: torch `RandomSampler.__iter__`; verl 0.3 to 0.6 `create_rl_sampler`.
"""

from __future__ import annotations

from dataclasses import dataclass

from align.data.torch_generator import UNSEEDED, Int64, TorchGenerator


@dataclass(frozen=True, slots=True)
class TorchRandom:
    """The generator carries on from epoch to epoch; a resumed loader starts it anew.

    A checkpoint keeps the position, not the generator: a run resumed in epoch e goes on with the
    rest of the *first* epoch's permutation. `RowOrder` has ``resumed_at`` for that.
    """

    num_rows: int
    seed: int = UNSEEDED
    name: str = "torch RandomSampler"

    @property
    def epoch_length(self) -> int:
        """All rows."""
        return self.num_rows

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the epoch's permutation."""
        generator = TorchGenerator(self.seed)
        generator.skip_permutations(self.num_rows, 2 * number)
        return generator.randperm(self.num_rows, stop)
