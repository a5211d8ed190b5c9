"""Rows in file order: shuffling is off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.data.torch_generator import Int64


@dataclass(frozen=True, slots=True)
class Sequential:
    """torch's SequentialSampler: every epoch is the data set from first to last row."""

    num_rows: int
    name: str = "SequentialSampler"

    @property
    def epoch_length(self) -> int:
        """All rows."""
        return self.num_rows

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return 0 … n-1."""
        return np.arange(self.num_rows)[:stop]
