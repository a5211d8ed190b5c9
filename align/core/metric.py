"""Metrics over steps, as one file recorded them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

from align.core.finding import Evidence


@dataclass(frozen=True, slots=True, eq=False)
class MetricSeries:
    """One metric of one run.

    Args:
        name: vocabulary name (verl 0.9's spelling where the meaning is the same), else
            ``spelling``.
        spelling: as the file has it.
        source: file the values come from.
        steps: int64 [n], strictly increasing.
        values: float64 [n]; NaN and infinities as recorded.
        resolution: float64 [n]; smallest difference the printed form can show: 0.001 where three
            decimals were printed, 0.0 where the value is complete.
        lines: int64 [n]; 1-based line of each value, 0 where the format has no lines.
    """

    name: str
    spelling: str
    source: str
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    resolution: npt.NDArray[np.float64]
    lines: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A place in a file that could not be used."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class MetricLog:
    """Every metric in one file, and what was left out.

    ``num_overwritten`` counts values that a later line of the same step and key replaced
    (resumed runs repeat steps); ``last_error`` quotes the last error line of a console log.
    """

    source: str
    format: str
    framework: str | None
    series: tuple[MetricSeries, ...]
    num_lines: int = 0
    num_metric_lines: int = 0
    min_keys_per_line: int = 0
    max_keys_per_line: int = 0
    num_overwritten: int = 0
    skipped: tuple[Skipped, ...] = ()  # the first 100
    num_skipped: int = 0
    last_error: Evidence | None = None
    notes: tuple[str, ...] = ()

    def get(self, name: str) -> MetricSeries | None:
        """Return the series with this vocabulary name or spelling."""
        return next((s for s in self.series if name in (s.name, s.spelling)), None)

    @property
    def step_range(self) -> tuple[int, int] | None:
        """Return the first and last step of any series, None without a step."""
        ranges = [(int(s.steps[0]), int(s.steps[-1])) for s in self.series if len(s)]
        if not ranges:
            return None
        return min(first for first, _ in ranges), max(last for _, last in ranges)
