"""Metrics as JSON lines: verl's FileLogger in both its dialects, and flat rows with a step.

``{"step":1,"data":{"actor/lr":1e-6}}`` is written by orjson (which turns NaN and infinities into
null) or, with blanks, by json.dumps (which writes NaN and Infinity). A flat row holds the step
beside the metrics: ``{"step": 3, "actor/grad_norm": NaN}``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from align.core.errors import DumpError
from align.core.metric import MetricLog
from align.core.run import ArtifactKind
from align.frameworks.registry import frameworks
from align.frameworks.vocabulary import MetricKind, metric_meaning, metric_name
from dumps.readers.metric_columns import MetricColumns, as_number, as_step
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

_NESTED_START = re.compile(rb'\s*\{\s*"step"\s*:\s*[-\d.e+]+\s*,\s*"data"\s*:\s*\{')
_ROW_START = re.compile(r'\{\s*"(?:step|data)"\s*:')
_STEP_KEYS = ("step", "training/global_step", "global_step", "_step")
_LONGEST_LINE_BYTES = 1 << 24
_NUM_LINES_TO_JUDGE = 20


def sniff(glimpse: Glimpse) -> bool:
    """Whether one of the first lines is a row of metrics."""
    for line in glimpse.head.split(b"\n", _NUM_LINES_TO_JUDGE)[:_NUM_LINES_TO_JUDGE]:
        if _NESTED_START.match(line):
            return True
        if line.lstrip().startswith(b"{") and any(_row_of(obj) for obj in _objects(line)):
            return True
    return False


def read(path: Path, progress: Progress = no_progress) -> MetricLog:
    """Read a file of metric rows; lines that are none are counted, not fatal.

    Raises:
        DumpError: The file holds text, but no row of metrics.
    """
    columns = MetricColumns(str(path), READER.format)
    num_lines = num_null = 0
    with path.open("rb") as file:
        while line := file.readline(_LONGEST_LINE_BYTES):
            num_lines += 1
            progress(len(line))
            if line.strip():
                num_null += add_line(columns, num_lines, line)
    if num_null:
        columns.note(f"{num_null} null values are read as NaN: orjson writes NaN and ±Infinity so")
    if not num_lines:
        columns.note("the file is empty")
    elif not columns.num_rows:
        raise DumpError(
            where=str(path),
            problem=f'none of its {num_lines} lines is a row {{"step": N, "data": {{…}}}}',
            fix="give the file that verl's file logger wrote (VERL_FILE_LOGGER_PATH)",
        )
    return columns.log(num_lines=num_lines)


def add_line(columns: MetricColumns, number: int, line: bytes) -> int:
    """Add every row of one line, and return how many of its values are null."""
    num_null = num_rows = 0
    for obj in _objects(line):
        row = _row_of(obj)
        if row is None:
            continue
        step, data = row
        num_rows += 1
        num_null += sum(value is None for value in data.values())
        numbers = [(key, _number(value)) for key, value in data.items()]
        readable = [(key, value) for key, value in numbers if value is not None]
        columns.add_row(step, number, readable)
        for key, value in numbers:
            if value is None:
                columns.skip(number, f"{key} is not a number")
    if not num_rows:
        columns.skip(
            number, f"not a row of metrics: {line[:60].decode('utf-8', 'replace').strip()}"
        )
    return num_null


def _number(value: object) -> float | None:
    return math.nan if value is None else as_number(value)


def _objects(line: bytes) -> Iterator[object]:
    """Yield the JSON documents of a line; a killed writer leaves half a row before a whole one."""
    try:
        yield orjson.loads(line)
        return
    except ValueError:  # NaN or Infinity, or broken
        pass
    text = line.decode("utf-8", "replace").strip()
    decoder = json.JSONDecoder()
    start = 0
    while start < len(text):
        try:
            document, start = decoder.raw_decode(text, start)
            yield document
        except (ValueError, RecursionError):
            start += 1
        following = _ROW_START.search(text, start)
        if following is None:
            return
        start = following.start()


def _row_of(obj: object) -> tuple[int, Mapping[str, object]] | None:
    """Return step and values of a row of metrics, None for any other document."""
    if not isinstance(obj, dict):
        return None
    step_key = next((key for key in _STEP_KEYS if key in obj), None)
    step = None if step_key is None else as_step(obj[step_key])
    if step is None:
        return None
    data = obj.get("data")
    if isinstance(data, dict):
        return step, data
    rest = {key: value for key, value in obj.items() if key != step_key}
    return (step, rest) if _is_flat_row(rest) else None


def _is_flat_row(row: Mapping[str, object]) -> bool:
    """Whether all values are numbers and a key is known: rollout rows have a step and text."""
    if not row or any(_number(value) is None for value in row.values()):
        return False
    return any(_is_known(key) for key in row)


def _is_known(spelling: str) -> bool:
    names = (metric_name(framework, spelling) for framework in frameworks())
    return any(
        metric_meaning(name).kind not in (MetricKind.UNKNOWN, MetricKind.BOOKKEEPING)
        for name in names
    )


READER = Reader("filelogger_jsonl", ArtifactKind.METRICS, sniff, read, priority=20)
