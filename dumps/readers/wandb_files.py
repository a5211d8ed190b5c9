"""What wandb leaves on disk: the ``.wandb`` datastore and ``wandb-summary.json``. No network.

A datastore is a LevelDB log (blocks of 32 KiB, records with a checksum, split over blocks where
needed) of protobuf messages. The framing is read here, because wandb 0.20 and later keep no
reader of it in Python; the messages are the wandb package's own.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from align.core.errors import DumpError
from align.core.metric import MetricLog
from align.core.optional import require
from align.core.run import ArtifactKind
from dumps.readers.metric_columns import MetricColumns, as_number, as_step
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

_MAGIC = b":W&B"
_FILE_HEADER_BYTES = 7
_RECORD_HEADER = struct.Struct("<IHB")  # crc32 of type and data, length, type
_BLOCK_BYTES = 32 * 1024
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_CLOCKS = frozenset({"_step", "_timestamp", "_runtime", "_wandb"})
# transformers logs its step as a metric: wandb's own then counts calls.
_STEP_KEYS = ("train/global_step", "_step")
_MAX_SUMMARY_BYTES = 1 << 26


def sniff_datastore(glimpse: Glimpse) -> bool:
    """Whether the file starts as a wandb datastore."""
    return glimpse.head.startswith(_MAGIC)


def sniff_summary(glimpse: Glimpse) -> bool:
    """Whether the file is a wandb-summary.json."""
    head = glimpse.head.lstrip()
    clocks = (b'"_runtime"', b'"_timestamp"', b'"_wandb"')
    return head.startswith(b"{") and b'"_step"' in head and any(clock in head for clock in clocks)


def read_datastore(path: Path, progress: Progress = no_progress) -> MetricLog:
    """Read the history of a datastore up to where it ends or is cut.

    Raises:
        MissingPackageError: wandb is not installed.
        DumpError: The file holds no readable record.
    """
    record_type = require("wandb.proto.wandb_internal_pb2", extra="wandb").Record
    decode_error = require("google.protobuf.message", extra="wandb").DecodeError
    columns = MetricColumns(str(path), DATASTORE.format)
    num_records = 0
    for data in _records(path, columns, progress):
        try:
            record = record_type.FromString(data)
        except decode_error as error:
            columns.skip(0, f"record {num_records + 1} is no wandb message ({error})")
            continue
        num_records += 1
        if record.HasField("history"):
            _add_history(columns, record.history)
    if not num_records:
        raise DumpError(
            where=str(path),
            problem="holds no readable record",
            fix="copy the wandb folder again, after `wandb.finish()` where the run still goes on",
        )
    if not columns.num_rows:
        columns.note(f"none of its {num_records} records logs a metric: the run ended before that")
    return columns.log()


def read_summary(path: Path, progress: Progress = no_progress) -> MetricLog:
    """Read the last values of a run, as its wandb summary keeps them: one step.

    Raises:
        DumpError: It is no JSON object with a ``_step``.
    """
    with path.open("rb") as file:
        data = file.read(_MAX_SUMMARY_BYTES)
    progress(len(data))
    try:
        summary = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise _no_summary(path, f"is no JSON ({error})") from error
    step = as_step(summary.get("_step")) if isinstance(summary, dict) else None
    if step is None:
        raise _no_summary(path, "has no whole number under _step")
    columns = MetricColumns(str(path), SUMMARY.format)
    columns.add_row(step, 1, list(_numbers(summary)))
    columns.note("a wandb summary holds the last value of every metric, not its course")
    return columns.log(num_lines=data.count(b"\n") + 1)


def _no_summary(path: Path, problem: str) -> DumpError:
    return DumpError(where=str(path), problem=problem, fix="give wandb's own wandb-summary.json")


def _numbers(items: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for key, value in items.items():
        number = as_number(value)
        if key not in _CLOCKS and number is not None:
            yield key, number


def _add_history(columns: MetricColumns, history: Any) -> None:
    """Add one wandb.log() call."""
    items = {item.key or ".".join(item.nested_key): _item_value(item) for item in history.item}
    own_step = history.step.num if history.HasField("step") else None
    stated = [as_step(items.get(key)) for key in _STEP_KEYS] + [own_step]
    step = next((step for step in stated if step is not None), None)
    row = list(_numbers(items))
    if step is None:
        columns.skip(0, "a row of the history without a step")
    elif row:
        columns.add_row(step, 0, row)


def _item_value(item: Any) -> object:
    """Return an item's value: JSON text to wandb 0.2x, a typed field since."""
    if item.value_json:
        try:
            return json.loads(item.value_json)
        except (ValueError, RecursionError):
            return None
    for name in ("number", "integer", "boolean"):
        if name in item.DESCRIPTOR.fields_by_name and item.HasField(name):
            value: object = getattr(item, name)
            return value
    return None


def _records(path: Path, columns: MetricColumns, progress: Progress) -> Iterator[bytes]:
    """Join the pieces of each record; what was cut or damaged is counted."""
    open_record: bytearray | None = None
    for kind, piece in _pieces(path, columns, progress):
        if kind in (_FULL, _FIRST) and open_record is not None:
            columns.skip(0, "a record whose end is missing")
        if kind == _FULL:
            open_record = None
            yield piece
        elif kind == _FIRST:
            open_record = bytearray(piece)
        elif open_record is not None:
            open_record += piece
            if kind == _LAST:
                yield bytes(open_record)
                open_record = None
    if open_record is not None:
        columns.note("the datastore ends in the middle of a record: the run was not closed")


def _pieces(path: Path, columns: MetricColumns, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """Yield type and data of every piece with a right checksum."""
    with path.open("rb") as file:
        skipped = _FILE_HEADER_BYTES  # the first block holds the file's own header
        while block := file.read(_BLOCK_BYTES):
            progress(len(block))
            yield from _pieces_of(block, skipped, columns, file)
            skipped = 0


def _pieces_of(
    block: bytes, offset: int, columns: MetricColumns, file: BinaryIO
) -> Iterator[tuple[int, bytes]]:
    while offset + _RECORD_HEADER.size <= len(block):
        checksum, length, kind = _RECORD_HEADER.unpack_from(block, offset)
        start = offset + _RECORD_HEADER.size
        piece = block[start : start + length]
        if kind == 0 and length == 0:
            return  # padding
        if len(piece) < length:
            columns.skip(0, f"a record cut at byte {file.tell()}")
            return
        if zlib.crc32(piece, zlib.crc32(bytes([kind]))) == checksum:
            yield kind, piece
        else:
            columns.skip(0, f"a damaged record before byte {file.tell()}")
        offset = start + length


DATASTORE = Reader(
    "wandb_datastore", ArtifactKind.METRICS, sniff_datastore, read_datastore, priority=30
)
SUMMARY = Reader("wandb_summary", ArtifactKind.METRICS, sniff_summary, read_summary, priority=30)
READERS = (DATASTORE, SUMMARY)
