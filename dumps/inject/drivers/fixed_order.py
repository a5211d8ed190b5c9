"""A sampler that gives recorded rows of a data set first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class FixedOrder:
    """A sampler that gives recorded positions first, then goes on as the run's own would.

    Args:
        positions: of the data set.
        batch_size: rows a batch; an epoch's last rows that fill none are not drawn.
        rest: the run's own sampler, whose length this one has.
    """

    generator = None

    def __init__(self, positions: Sequence[int], batch_size: int, rest: Any) -> None:
        self.positions, self.batch_size, self.rest = list(positions), batch_size, rest
        self._done = 0

    def __len__(self) -> int:
        return len(self.rest)

    def __iter__(self) -> Any:
        whole = len(self) // self.batch_size * self.batch_size
        given = self.positions[self._done : self._done + whole]
        yield from given
        if len(given) < whole:
            for count, position in enumerate(self.rest):
                if count >= len(given):
                    yield position
        # only an iterator that was used up counts: loaders with workers make one to no purpose
        self._done += len(given)
