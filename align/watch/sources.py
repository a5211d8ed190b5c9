"""One followed file: text lines of a log or of JSON rows, TensorBoard events, anything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from align.core.errors import AlignError
from align.core.metric import MetricSeries
from align.core.optional import require
from align.core.run import Artifact
from align.watch.follow_lines import LineFollower
from dumps.readers.console import MINDSPEED_RL, VERL, Dialect, read_block
from dumps.readers.filelogger_jsonl import add_line
from dumps.readers.metric_columns import MetricColumns
from dumps.readers.metric_rows import MetricRows, merge_rows
from dumps.readers.registry import reader_named
from dumps.readers.text import Block


@dataclass(frozen=True, slots=True)
class News:
    """What one poll of one file brought.

    Args:
        kind: of the format; a metric is taken from the first kind that brings it.
        framework: that wrote it, None where these lines do not tell.
    """

    kind: str
    framework: str | None
    series: tuple[MetricSeries, ...]


class Source(Protocol):
    """A file that grows."""

    def poll(self) -> Iterator[News]:
        """Yield what is new."""


class TextSource:
    """A console log or JSON rows; which of them, its own lines show."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = LineFollower(path)
        self._dialect: Dialect | None = None

    def poll(self) -> Iterator[News]:
        """Yield the metrics of the lines that are new."""
        for text in self._lines.read():
            rows = _json_rows(self._path, text) if text.lstrip()[:1] == b"{" else None
            news = rows or self._console(text)
            if news is not None:
                yield news

    def _console(self, text: bytes) -> News | None:
        text = text.replace(b"\r", b"\n")
        for dialect in (VERL, MINDSPEED_RL) if self._dialect is None else (self._dialect,):
            rows = MetricRows(dialect.separator, lambda numbers, _: [0.0] * len(numbers))
            block = Block(text, range(1, text.count(b"\n") + 2))
            read_block(block, text, dialect, rows)
            if rows.num_rows:
                self._dialect = dialect
                series, _ = merge_rows(rows.layouts, str(self._path), dialect.framework)
                return News("console", dialect.framework, series)
        return None


class EventSource:
    """A TensorBoard event file.

    Raises:
        MissingPackageError: tensorboard is not installed.
    """

    def __init__(self, path: Path) -> None:
        module = "tensorboard.backend.event_processing.event_file_loader"
        self._path = path
        self._loader = require(module, extra="tensorboard").RawEventFileLoader(str(path))

    def poll(self) -> Iterator[News]:
        """Yield the scalars of the records that are new."""
        from dumps.readers.tensorboard_events import scalars

        event_type = require("tensorboard.compat.proto.event_pb2", extra="tensorboard").Event
        columns = MetricColumns(str(self._path), "tensorboard_events")
        for record in self._loader.Load():
            event = event_type.FromString(record)
            for tag, value, resolution in scalars(event)[0]:
                columns.add_row(event.step, 0, [(tag, value)], resolution)
        if columns.num_rows:
            log = columns.log()
            yield News("tensorboard", log.framework, log.series)


class WholeFile:
    """A file of another format: read again where it changed."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._seen: tuple[int, int] | None = None

    def poll(self) -> Iterator[News]:
        """Yield everything in the file, if it changed."""
        path = self._artifact.path
        try:
            status = path.stat()
            now = status.st_size, status.st_mtime_ns
            if now == self._seen:
                return
            reader = reader_named(self._artifact.format, self._artifact.kind)
            log = reader.read(path, lambda _: None)
        except (OSError, AlignError):
            return  # being written; the next poll sees it whole
        self._seen = now
        yield News(self._artifact.format, log.framework, log.series)


def _json_rows(path: Path, text: bytes) -> News | None:
    columns = MetricColumns(str(path), "filelogger_jsonl")
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            add_line(columns, number, line)
    if not columns.num_rows:
        return None
    log = columns.log()
    return News("json", log.framework, log.series)
