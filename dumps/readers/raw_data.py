"""Raw data sets as JSON, JSON Lines or CSV: what MindSpeed-RL's preprocess takes in.

A file is one by content: its rows have a question and a label, and are neither rollouts (which
have a response or a score) nor metrics.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from align.core.data_set import DataSet
from align.core.errors import DumpError
from align.core.run import ArtifactKind
from dumps.readers.data_fields import FieldMap, dotted_names, guess_fields
from dumps.readers.data_rows import Place, data_set
from dumps.readers.json_lines import Unreadable, first_object, iter_objects
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress
from dumps.readers.text import identify

FORMAT = "raw_data"
_NO_DATA_SET = frozenset(
    {"output", "response", "completion", "score", "reward", "acc", "step", "vocab", "metrics"}
)
_SHORTEST_ROW = 2
csv.field_size_limit(1 << 24)


def _sniff(glimpse: Glimpse) -> bool:
    suffix = glimpse.path.suffix.lower()
    if identify(glimpse.head) is not None or suffix not in (".json", ".jsonl", ".csv", ".tsv"):
        return False
    names = _csv_names(glimpse) if suffix in (".csv", ".tsv") else _json_names(glimpse)
    fields = guess_fields(names)
    if fields is None or fields.label is None:
        return False
    alpaca = fields.prompt == "instruction" and fields.label == "output" and "score" not in names
    return alpaca or names.isdisjoint(_NO_DATA_SET)


def read(path: Path, progress: Progress = no_progress, fields: FieldMap | None = None) -> DataSet:
    """Read questions and labels; a row that is none is counted and keeps its place.

    Args:
        fields: MindSpeed-RL's ``map_keys``; guessed from the first row by default.

    Raises:
        DumpError: No row can be read, or none has a question.
    """
    rows = list(_places(path, progress))
    first = next((row for _, row in rows if isinstance(row, Mapping)), {})
    fields = fields or guess_fields(dotted_names(first))
    if fields is None:
        first_why = next((row for _, row in rows if isinstance(row, str)), None)
        raise DumpError(
            where=str(path),
            problem="no field is a question "
            f"({first_why or 'it has ' + (', '.join(sorted(map(str, first))) or 'no row')})",
            fix="name it with --map-key prompt=FIELD",
        )
    return data_set(path, FORMAT, rows, fields)


def _places(path: Path, progress: Progress) -> Iterator[Place]:
    if path.suffix.lower() in (".csv", ".tsv"):
        progress(path.stat().st_size)
        return _csv_rows(path)
    with path.open("rb") as file:
        is_array = file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    return _array_rows(path, progress) if is_array else _line_rows(path, progress)


def _line_rows(path: Path, progress: Progress) -> Iterator[Place]:
    for line, row, _ in iter_objects(path, progress):
        yield line, row.why if isinstance(row, Unreadable) else row


def _array_rows(path: Path, progress: Progress) -> Iterator[Place]:
    """Yield the objects of one array; of a truncated one those before the end."""
    text = path.read_bytes().decode("utf-8-sig", "replace")
    progress(path.stat().st_size)
    decoder, position, number = json.JSONDecoder(), text.find("[") + 1, 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text) or text[position] == "]":
            return
        try:
            row, position = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError, ValueError) as error:
            yield number, f"the array breaks off here ({str(error)[:80]})"
            return
        yield number, row if isinstance(row, dict) else "not a JSON object"
        number += 1


def _csv_rows(path: Path) -> Iterator[Place]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            yield reader.line_num, f"no CSV ({error})"


def _csv_names(glimpse: Glimpse) -> set[str]:
    delimiter = "\t" if glimpse.path.suffix.lower() == ".tsv" else ","
    header = glimpse.head.decode("utf-8-sig", "replace").partition("\n")[0]
    try:
        names = next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:
        return set()
    return {name.strip() for name in names} if len(names) >= _SHORTEST_ROW else set()


def _json_names(glimpse: Glimpse) -> set[str]:
    head = glimpse.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head.startswith(b"["):
        row = first_object(glimpse)
        return dotted_names(row) if row else set()
    return dotted_names(_first_of_array(head))


def _first_of_array(head: bytes) -> dict[str, Any]:
    text = head.decode("utf-8", "replace")[1:].lstrip()
    try:
        row, _ = json.JSONDecoder().raw_decode(text)
    except (json.JSONDecodeError, RecursionError, ValueError):
        return {}
    return row if isinstance(row, dict) else {}


READER = Reader(FORMAT, ArtifactKind.DATA, _sniff, read, priority=-10)
