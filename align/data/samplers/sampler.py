"""What a sampler is: row positions of one epoch after the other."""

from __future__ import annotations

from typing import Protocol

from align.data.torch_generator import Int64


class Sampler(Protocol):
    """Gives positions among the rows kept, the same every time; a frozen dataclass."""

    @property
    def name(self) -> str:
        """What it is called in a report, such as "torchdata RandomSampler"."""
        ...

    @property
    def epoch_length(self) -> int:
        """How many positions one epoch has, before an incomplete batch is dropped."""
        ...

    def __hash__(self) -> int: ...

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the first ``stop`` positions of an epoch, counted from 0; all by default."""
        ...
