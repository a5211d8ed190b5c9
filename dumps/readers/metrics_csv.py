"""Metrics as CSV: one row a step, blanks where a metric was not logged.

The step column is found by its name among those that exporters use; wandb's panel export writes
``Step`` and, for every run, ``<run> - <metric>`` with ``__MIN`` and ``__MAX`` beside it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from align.core.errors import DumpError
from align.core.metric import MetricLog
from align.core.run import ArtifactKind
from dumps.readers.metric_columns import MetricColumns, as_number, as_step
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

# In order of trust: wandb's own "Step" and "_step" may count log calls. The first that is not
# blank in a row counts, because a validation row has no training/global_step.
_STEP_NAMES = (
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "step",
    "_step",
    "iteration",
)
_NO_METRICS = frozenset({"wall time", "value", "_timestamp", "_runtime", "timestamp", "time"})
_WANDB_COLUMN = re.compile(r"(?P<run>.+) - (?P<metric>\S+)$")
_WANDB_RANGE = ("__MIN", "__MAX")
_FIXED_POINT = re.compile(r"[-+]?\d+\.(\d{1,6})")
_NUM_ROWS_TO_JUDGE = 5
_FEWEST_TO_CALL_FIXED = 5
csv.field_size_limit(1 << 24)


@dataclass(frozen=True, slots=True)
class _Header:
    delimiter: str
    steps: tuple[int, ...]  # indices of the columns that can hold the step
    metrics: tuple[tuple[int, str], ...]  # index and spelling of the others
    ignored: tuple[str, ...]


def sniff(glimpse: Glimpse) -> bool:
    """Whether the header names a step and metrics, and the first row has a whole step."""
    lines = glimpse.head.decode("utf-8-sig", "replace").splitlines()
    if len(lines) < 2:
        return False
    header = _parse_header(lines[0])
    if header is None:
        return False
    rows = csv.reader(lines[1 : 1 + _NUM_ROWS_TO_JUDGE], delimiter=header.delimiter)
    try:
        return any(_step_of(row, header) is not None for row in rows)
    except csv.Error:
        return False


def read(path: Path, progress: Progress = no_progress) -> MetricLog:
    """Read a table of metrics.

    Where every number of the file is printed with one number of decimals, six or fewer, that is
    taken for its resolution.

    Raises:
        DumpError: There is no header with a step column, or no row under it.
    """
    columns = MetricColumns(str(path), READER.format)
    lines = _lines(path, progress)
    header = _parse_header(next(lines, ""))
    if header is None:
        raise DumpError(
            where=f"{path}:1",
            problem="has no column for the step",
            fix=f"name one of the columns {', '.join(_STEP_NAMES)} or export with the step",
        )
    decimals = _add_rows(columns, header, lines)
    if not columns.num_rows:
        raise DumpError(
            where=str(path), problem="has a header and no readable row", fix="export it again"
        )
    if header.ignored:
        columns.note(f"columns that hold no metric: {', '.join(header.ignored[:10])}")
    return _with_resolution(columns.log(num_lines=columns.num_rows + 1), decimals)


def _lines(path: Path, progress: Progress) -> Iterator[str]:
    with path.open("rb") as file:
        for raw in file:
            progress(len(raw))
            yield raw.decode("utf-8-sig", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _parse_header(line: str) -> _Header | None:
    for delimiter in ",\t;":
        try:
            names = [n.strip() for n in next(csv.reader([line], delimiter=delimiter), [])]
        except csv.Error:
            return None
        lowered = [name.lower() for name in names]
        steps = tuple(lowered.index(name) for name in _STEP_NAMES if name in lowered)
        others = [(i, name) for i, name in enumerate(names) if i not in steps]
        metrics = tuple((i, _spelling(name)) for i, name in others if _is_metric(name))
        if steps and metrics:
            ignored = tuple(name for _, name in others if not _is_metric(name))
            return _Header(delimiter, steps, metrics, ignored)
    return None


def _step_of(cells: Sequence[str], header: _Header) -> int | None:
    found = (as_step(cells[i]) for i in header.steps if i < len(cells))
    return next((step for step in found if step is not None), None)


def _is_metric(name: str) -> bool:
    return bool(name) and name.lower() not in _NO_METRICS and not name.endswith(_WANDB_RANGE)


def _spelling(name: str) -> str:
    column = _WANDB_COLUMN.fullmatch(name)
    return column["metric"] if column else name


def _add_rows(columns: MetricColumns, header: _Header, lines: Iterator[str]) -> _Decimals:
    decimals = _Decimals()
    rows = csv.reader(lines, delimiter=header.delimiter)
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return decimals
        except csv.Error as error:
            columns.skip(rows.line_num + 1, str(error))
            continue
        if cells:
            _add_row(columns, header, rows.line_num + 1, cells, decimals)


def _add_row(
    columns: MetricColumns,
    header: _Header,
    line: int,
    cells: Sequence[str],
    decimals: _Decimals,
) -> None:
    step = _step_of(cells, header)
    if step is None:
        columns.skip(line, "no whole number as its step")
        return
    row = []
    for index, spelling in header.metrics:
        cell = cells[index].strip() if index < len(cells) else ""
        value = as_number(cell)
        if value is not None:
            row.append((spelling, value))
            decimals.see(cell)
        elif cell:
            columns.skip(line, f"{spelling} is not a number: {cell[:40]}")
    columns.add_row(step, line, row)


class _Decimals:
    """How many decimals the numbers of a file have, where it is one and the same count."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def see(self, cell: str) -> None:
        """Count one printed number; whole numbers and NaN say nothing."""
        if "." in cell:
            fixed = _FIXED_POINT.fullmatch(cell)
            places = len(fixed[1]) if fixed else 0
            self._seen[places] = self._seen.get(places, 0) + 1

    @property
    def resolution(self) -> float:
        """Smallest printed difference, 0.0 where values are complete."""
        if len(self._seen) != 1:
            return 0.0
        ((places, count),) = self._seen.items()
        return 10.0**-places if places and count >= _FEWEST_TO_CALL_FIXED else 0.0


def _with_resolution(log: MetricLog, decimals: _Decimals) -> MetricLog:
    import numpy as np

    if not decimals.resolution:
        return log
    series = [
        replace(s, resolution=np.where(np.isfinite(s.values), decimals.resolution, 0.0))
        for s in log.series
    ]
    return replace(log, series=tuple(series))


READER = Reader("metrics_csv", ArtifactKind.METRICS, sniff, read, priority=10)
