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
