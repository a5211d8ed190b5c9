"""TensorBoard event files, read through the tensorboard package; one artifact a file.

Scalars are float32 in the file, so the resolution of a value is the distance to its neighbour in
float32. MindSpeed-RL, and TRL through transformers, write their tags with ``train/`` before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.metric import MetricLog
from align.core.optional import require
from align.core.run import ArtifactKind
from dumps.readers.metric_columns import MetricColumns
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

if TYPE_CHECKING:
    from types import ModuleType

_FRAME_BYTES = 8 + 4 + 4  # length, its checksum, checksum of the record
_HEADER = slice(8 + 4, 64)  # after the record's length and its checksum


def sniff(glimpse: Glimpse) -> bool:
    """Whether the first record of the file is an event with a file version."""
    return b"brain.Event:" in glimpse.head[_HEADER]


def read(path: Path, progress: Progress = no_progress) -> MetricLog:
    """Read the scalars of one event file, up to where it is cut.

    Raises:
        MissingPackageError: tensorboard is not installed.
        DumpError: Not even the first record can be read.
    """
    columns = MetricColumns(str(path), READER.format)
    num_events = num_other = 0
    for event in _events(path, columns, progress):
        num_events += 1
        found, others = scalars(event)
        num_other += others
        for tag, value, resolution in found:
            columns.add_row(event.step, 0, [(tag, value)], resolution)
    if not num_events:
        raise DumpError(
            where=str(path),
            problem="is no readable event file",
            fix="copy it again; an event file cannot be repaired",
        )
    if num_other:
        columns.note(f"{num_other} values are no scalars (text, images, histograms)")
    if not columns.num_rows:
        columns.note("the event file holds its header and no scalar")
    return columns.log()


def _events(path: Path, columns: MetricColumns, progress: Progress) -> Iterator[Any]:
    """Yield the event messages; a damaged record ends the file, as it does in TensorBoard."""
    loader = _package("tensorboard.backend.event_processing.event_file_loader")
    event_type = _package("tensorboard.compat.proto.event_pb2").Event
    decode_error = _package("google.protobuf.message").DecodeError
    num_bytes = 0
    for record in loader.RawEventFileLoader(str(path)).Load():
        num_bytes += len(record) + _FRAME_BYTES
        progress(len(record) + _FRAME_BYTES)
        try:
            yield event_type.FromString(record)
        except decode_error as error:
            columns.skip(0, f"the record that ends at byte {num_bytes} is no event ({error})")
    rest = path.stat().st_size - num_bytes
    if rest > 0:
        columns.note(f"cut or damaged at byte {num_bytes}: the last {rest} bytes are not read")


def scalars(event: Any) -> tuple[list[tuple[str, float, float]], int]:
    """Return (tag, value, resolution) of the scalars, and how many other values there are."""
    found: list[tuple[str, float, float]] = []
    others = 0
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            found.append((value.tag, value.simple_value, _spacing(value.simple_value)))
        elif kind == "tensor" and (scalar := _scalar_of(value.tensor)) is not None:
            found.append((value.tag, *scalar))
        else:
            others += 1
    return found, others


def _scalar_of(tensor: Any) -> tuple[float, float] | None:
    """Return the value and resolution of a tensor with one floating-point element."""
    try:
        array = _package("tensorboard.util.tensor_util").make_ndarray(tensor)
    except (TypeError, ValueError):
        return None
    if array.size != 1 or array.dtype.kind != "f":
        return None
    value = float(array.reshape(())[()])
    return value, 0.0 if array.dtype.itemsize == 8 else _spacing(value)


def _spacing(value: float) -> float:
    """Return the distance from a float32 to its neighbour, 0.0 for NaN and infinities."""
    if not math.isfinite(value):
        return 0.0
    exponent = math.frexp(value)[1] if value else -126
    return math.ldexp(1.0, max(exponent - 24, -149))  # 24 bits of precision; least subnormal


def _package(name: str) -> ModuleType:
    return require(name, extra="tensorboard")


READER = Reader("tensorboard_events", ArtifactKind.METRICS, sniff, read, priority=30)
