"""Sketches of a step's tensors, as our captures write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from align.core.errors import DumpError
from align.core.optional import require
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.store.tensor_records import FORMAT, SketchFile, TensorRecord

_LENGTH = 8
_MARK = b'{"__metadata__":{"format":"' + FORMAT.encode() + b'"}'
_WHOLE = 1 << 64


def sniff(glimpse: Glimpse) -> bool:
    """Tell whether a file is a safetensors file of ours."""
    head = glimpse.head
    return (
        head[_LENGTH : _LENGTH + 16] == b'{"__metadata__":'
        and b'"' + FORMAT.encode() + b'"' in head
    )


def read(path: Path, progress: Progress) -> SketchFile:
    """Read one file.

    Raises:
        DumpError: It is cut off or otherwise broken.
    """
    require("safetensors", extra="torch")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        stated = json.loads(tensors["document"].tobytes())
        records = tuple(_record(row, i, tensors) for i, row in enumerate(stated["records"]))
        progress(path.stat().st_size)
        return SketchFile(
            source=str(path),
            step=stated["step"],
            rank=stated["rank"],
            records=records,
            unaligned=tuple(stated["unaligned"]),
            problems=tuple(stated["problems"]),
            facts=stated["facts"],
        )
    except (SafetensorError, KeyError, ValueError, IndexError, TypeError) as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be read as sketches ({error})",
            fix="record the step again",
        ) from error


def _record(row: list[Any], i: int, tensors: dict[str, Any]) -> TensorRecord:
    name, phase, update, order, dtype, shape, num_elements = row
    zeros, nan, *infinities, bfloat16, digest = map(int, tensors["counts"][i])
    l2, minimum, maximum = (float(value) for value in tensors["moments"][i])
    return TensorRecord(
        name,
        phase,
        update,
        order,
        dtype,
        tuple(shape),
        num_elements,
        tensors["sketch"][i].astype("float64"),
        l2,
        float(tensors["total"][i]),
        minimum,
        maximum,
        zeros,
        nan,
        infinities[0],
        infinities[1],
        bfloat16,
        digest % _WHOLE,
    )


READER = Reader(FORMAT, ArtifactKind.LAYERS, sniff, read)
