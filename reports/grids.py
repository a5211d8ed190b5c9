"""Errors of one tensor as an SVG heat map: one cell a head and position, say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from align.core.figure import Grid
from reports.profiles import BINS, Bin, label, style_of, svg

WIDE, HIGH = 12.0, 12.0
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
    left = 12 + 5.6 * max(map(len, grid.rows), default=0)
    cells: dict[str, list[str]] = {each.style: [] for each in BINS}
    for down, row in enumerate(grid.errors):
        for across, error in enumerate(row):
            x, y = left + WIDE * across, 16 + HIGH * down
            path = f"M{x:.1f} {y:.1f}h{WIDE - 1:g}v{HIGH - 1:g}h-{WIDE - 1:g}z"
            cells[style_of(error, grid.limit)].append(path)
    parts = [f'<path class="{s}" d="{"".join(paths)}"/>' for s, paths in cells.items() if paths]
    for number, name in enumerate(grid.rows):
        parts.append(label(left - 5, 16 + HIGH * number + 9, name, anchor="end"))
    every = math.ceil(CHARACTER * max(map(len, grid.columns), default=0) / WIDE) or 1
    for number, name in list(enumerate(grid.columns))[::every]:
        parts.append(label(left + WIDE * number + 5, 11, name, anchor="middle"))
    width, height = left + WIDE * len(grid.columns) + 4, 18 + HIGH * len(grid.rows)
    return svg(max(width, 340.0), height, parts)
