"""Metric values of one file, gathered key by key, and made into a `MetricLog`.

For formats that give one value at a time; console logs have their own, faster `metric_rows.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from align.core.metric import MetricLog, MetricSeries, Skipped
from align.frameworks.vocabulary import identify_framework, metric_name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MAX_SKIPPED = 100
_MAX_STEP = 2**63 - 1


@dataclass(slots=True)
class _Column:
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    resolution: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))


class MetricColumns:
    """Collects the values of one file; memory is 32 bytes a value."""

    def __init__(self, source: str, format: str) -> None:
        self._source, self._format = source, format
        self._columns: dict[str, _Column] = {}
        self._skipped: list[Skipped] = []
        self._num_skipped = 0
        self._notes: list[str] = []
        self._num_rows = 0
        self._fewest, self._most = _MAX_STEP, 0

    def add_row(
        self, step: int, line: int, row: Sequence[tuple[str, float]], resolution: float = 0.0
    ) -> None:
        """Add what one line or event says about one step."""
        for spelling, value in row:
            self.add(step, spelling, value, line=line, resolution=resolution)
        self._num_rows += 1
        self._fewest, self._most = min(self._fewest, len(row)), max(self._most, len(row))

    def add(
        self, step: int, spelling: str, value: float, *, line: int = 0, resolution: float = 0.0
    ) -> None:
        """Add one value; a later one of the same step and spelling replaces it."""
        column = self._columns.setdefault(spelling, _Column())
        column.steps.append(step)
        column.values.append(value)
        column.resolution.append(resolution)
        column.lines.append(line)

    def skip(self, line: int, why: str) -> None:
        """Count a place that could not be used."""
        self._num_skipped += 1
        if len(self._skipped) < _MAX_SKIPPED:
            self._skipped.append(Skipped(line, why))

    def note(self, text: str) -> None:
        """Add a remark about the whole file."""
        self._notes.append(text)

    @property
    def num_rows(self) -> int:
        """Lines or events that gave a step."""
        return self._num_rows

    def log(self, *, num_lines: int = 0) -> MetricLog:
        """Make the series: steps ascending, the last value of a step kept."""
        framework = identify_framework(self._columns)
        series = [self._series(framework, name) for name in self._columns]
        num_values = sum(len(column.steps) for column in self._columns.values())
        return MetricLog(
            source=self._source,
            format=self._format,
            framework=framework,
            series=tuple(series),
            num_lines=num_lines,
            num_metric_lines=self._num_rows,
            min_keys_per_line=self._fewest if self._num_rows else 0,
            max_keys_per_line=self._most,
            num_overwritten=num_values - sum(map(len, series)),
            skipped=tuple(self._skipped),
            num_skipped=self._num_skipped,
            notes=tuple(self._notes),
        )

    def _series(self, framework: str | None, spelling: str) -> MetricSeries:
        import numpy as np

        column = self._columns[spelling]
        steps = np.frombuffer(column.steps, dtype=np.int64)
        kept = _last_of_each(steps)
        return MetricSeries(
            name=metric_name(framework, spelling),
            spelling=spelling,
            source=self._source,
            steps=steps[kept],
            values=np.frombuffer(column.values, dtype=np.float64)[kept],
            resolution=np.frombuffer(column.resolution, dtype=np.float64)[kept],
            lines=np.frombuffer(column.lines, dtype=np.int64)[kept],
        )


def as_step(value: object) -> int | None:
    """Read a step: an int, a whole float or their text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
        step = int(value) if isinstance(value, int) else int(number)
    except (ValueError, OverflowError):
        return None
    return step if step == number and abs(step) < _MAX_STEP else None


def as_number(value: object) -> float | None:
    """Read a metric value: a number or its text, "NaN" and "-Infinity" too; None for the rest."""
    if not isinstance(value, (bool, int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _last_of_each(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return indices that sort ``steps``, the last of equal ones only."""
    import numpy as np

    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
    kept: npt.NDArray[np.intp] = order[is_last]
    return kept
