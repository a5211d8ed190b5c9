"""Rows of different lengths to one matrix, as verl pads: prompts to the left, responses right."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rows_of(column: Tensor) -> list[Tensor]:
    """Split a nested tensor, or a matrix, into its rows."""
    return list(column.unbind())


def padded(rows: Sequence[Tensor], value: float, *, left: bool = False) -> Tensor:
    """Return [b, longest] of 1-D rows, padded with ``value`` on one side."""
    width = max((len(row) for row in rows), default=0)
    matrix = torch.full((len(rows), width), value, dtype=rows[0].dtype if rows else torch.int64)
    for i, row in enumerate(rows):
        if len(row):
            matrix[i, width - len(row) if left else 0 : None if left else len(row)] = row
    return matrix


def joined(prompts: Sequence[Tensor], responses: Sequence[Tensor], value: float) -> Tensor:
    """Return [b, prompts' width + responses' width], padded at both ends."""
    return torch.cat([padded(prompts, value, left=True), padded(responses, value)], dim=1)
