"""Errors of one tensor as an SVG heat map: one cell a head and position, say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from align.core.figure import Grid
from reports.profiles import BINS, Bin, heat, style_of

CELL = 12.0
CHARACTER = 7.0  # of a name, wide


@dataclass(frozen=True, slots=True)
class GridDrawing:
    """One grid, and how many of its cells are beyond what explains them."""

    grid: Grid
    svg: str
    num_beyond: int
    num_cells: int
    bins: tuple[Bin, ...] = BINS


def grids_of(grids: Iterable[Grid]) -> tuple[GridDrawing, ...]:
    """Draw grids."""
    drawn = []
    for grid in grids:
        values = [value for row in grid.errors for value in row]
        beyond = sum(value > grid.limit for value in values)
        drawn.append(GridDrawing(grid, _drawn(grid), beyond, len(values)))
    return tuple(drawn)


def _drawn(grid: Grid) -> str:
    longest = max(map(len, grid.columns), default=0)
    return heat(
        [
            (down, across, style_of(error, grid.limit))
            for down, row in enumerate(grid.errors)
            for across, error in enumerate(row)
        ],
        grid.rows,
        grid.columns,
        CELL,
        every=math.ceil(CHARACTER * longest / CELL) or 1,
    )
