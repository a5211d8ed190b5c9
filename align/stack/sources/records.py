"""Records of a data file: one mapping a row, from parquet, JSON lines or a JSON array."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet
from pyarrow import ArrowException

from align.core.errors import DumpError
from dumps.readers.json_lines import Unreadable, iter_objects

Record = Mapping[str, Any]


def read_records(path: Path) -> list[tuple[str, Record]]:
    """Return (place for messages, record) of every row, by the file's ending.

    Raises:
        DumpError: The file is absent, of another kind, or a row is no JSON object.
    """
    try:
        if path.suffix == ".parquet":
            rows = pyarrow.parquet.read_table(path).to_pylist()
        elif path.suffix == ".json":
            rows = orjson.loads(path.read_bytes())
        else:
            return _json_lines(path)
    except (OSError, ArrowException, orjson.JSONDecodeError) as error:
        raise unreadable(path, error) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DumpError(
            where=str(path), problem="is no array of objects", fix="give one object a row"
        )
    return [(f"{path}: row {number}", row) for number, row in enumerate(rows)]


def column(record: Record, name: str, where: str) -> Any:
    """Return a column that the row must have.

    Raises:
        DumpError: It does not.
    """
    if name not in record:
        raise DumpError(
            where=where,
            key=name,
            problem=f"is missing; the row has {', '.join(map(str, record)) or 'nothing'}",
            fix="correct the data file, or name the right column",
        )
    return record[name]


def unreadable(path: Path, error: Exception) -> DumpError:
    """Return the error that says a data file cannot be read, and why."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DumpError(
        where=str(path), problem=f"cannot be read ({reason})", fix="give another data file"
    )


def _json_lines(path: Path) -> list[tuple[str, Record]]:
    rows: list[tuple[str, Record]] = []
    for line, record, _ in iter_objects(path):
        if isinstance(record, Unreadable):
            raise DumpError(
                where=f"{path}:{line}", problem=record.why, fix="correct the line or remove it"
            )
        rows.append((f"{path}:{line}", record))
    return rows
