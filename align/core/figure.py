"""Data behind the report's figures and tables, as values; nothing here draws."""

from __future__ import annotations

from dataclasses import dataclass

from align.core.finding import Scalar
from align.core.text import Text

Cell = Scalar | Text
"""A table cell: a value, or words in both languages."""


@dataclass(frozen=True, slots=True)
class Column:
    """A table column. ``numeric`` columns are right-aligned and sort by value."""

    key: str
    title: Text
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells the report shows with sorting and filtering."""

    id: str
    title: Text
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """One run's metric over steps: raw and smoothed values of equal length."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    smoothed: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CurvePair:
    """One metric of both runs, ready to draw; ``note`` says what the numbers below mean.

    ``onset`` are the first and the last step at which they can have parted; ``noise`` is how far
    two equal runs' smoothed curves differ, in the metric's unit. None where not known. ``task``
    names the task whose reward this is, for small multiples.
    """

    metric: str
    reference: Curve
    candidate: Curve
    window: int  # smoothing window in steps
    note: Text
    finding_id: str | None = None
    onset: tuple[int, int] | None = None
    noise: float | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One place of a profile.

    Args:
        name: what was compared.
        group, kind: its layer, None outside layers, and what it is within it.
        error, limit: relative error, and up to where it is explained.
        detail: dtype and shape, for its neighbourhood.
    """

    name: str
    group: int | None
    kind: str
    error: float
    limit: float
    detail: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Errors along the order of computation at one step.

    ``marked`` is the index of the point that departs first, None where none does. Profiles of one
    ``id`` are the same places at several steps, the first step first.
    """

    id: str
    title: Text
    step: int
    points: tuple[Point, ...]
    marked: int | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """Errors of one tensor along two of its axes.

    Args:
        down, across: what rows and columns are.
        rows, columns: their names.
        errors: relative, a tuple a row.
        limit: relative error up to which a cell is explained.
    """

    id: str
    title: Text
    down: Text
    across: Text
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    errors: tuple[tuple[float, ...], ...]
    limit: float
