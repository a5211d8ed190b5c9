"""Which rows every step of a run sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from align.data.samplers.sampler import Sampler
from align.data.torch_generator import Int64


@dataclass(frozen=True, slots=True)
class RowOrder:
    """A sampler's order, cut into steps; an incomplete batch at an epoch's end is dropped.

    Args:
        batch_size: rows of one step.
        kept: data-set row of each position, where rows were selected or filtered before the
            sampler saw them; None where a position is a row.
        resumed_at: the last step before a restart that lost the generator's state: what follows
            goes on at the same place of the first epoch. None for an order without such a restart.
    """

    sampler: Sampler
    batch_size: int
    kept: tuple[int, ...] | None = None
    resumed_at: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch; 0 where a batch is larger than the data set."""
        return self.sampler.epoch_length // self.batch_size

    def place(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step and its place therein, both from 0.

        Args:
            step: from 1, as both frameworks count.
        """
        if self.resumed_at is not None and step > self.resumed_at:
            step -= (self.resumed_at - 1) // self.steps_per_epoch * self.steps_per_epoch
        return divmod(step - 1, self.steps_per_epoch)

    def step(self, number: int) -> Int64:
        """Return the rows of a step, counted from 1, in the loader's order."""
        epoch, place = self.place(number)
        return self.batch(epoch, place)

    def peek(self, number: int) -> Int64:
        """Return the rows of a step as `step` does, working out no more than it needs."""
        epoch, place = self.place(number)
        stop = (place + 1) * self.batch_size
        positions = self.sampler.epoch(epoch, stop)[place * self.batch_size :]
        return positions if self.kept is None else _kept(self.kept)[positions]

    def batch(self, epoch: int, place: int) -> Int64:
        """Return the rows at a place of an epoch, both from 0."""
        start = place * self.batch_size
        positions = _epoch(self.sampler, epoch)[start : start + self.batch_size]
        return positions if self.kept is None else _kept(self.kept)[positions]


@lru_cache(maxsize=4)
def _epoch(sampler: Sampler, number: int) -> Int64:
    return sampler.epoch(number)


@lru_cache(maxsize=4)
def _kept(rows: tuple[int, ...]) -> Int64:
    import numpy as np

    return np.array(rows, np.int64)
