"""Sketches of a step's tensors, as our captures write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from align.core.errors import DumpError
from align.core.optional import require
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.store.record_table import RecordTable
from dumps.store.tensor_records import FORMAT, SketchFile

_LENGTH = 8


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
    with _opened(path) as file:
        found = _table(path, file).as_file()
    progress(path.stat().st_size)
    return found


def read_table(path: Path) -> RecordTable:
    """Read one file as columns.

    Raises:
        DumpError: It is cut off or otherwise broken.
    """
    with _opened(path) as file:
        return _table(path, file)


def read_step(path: Path) -> int:
    """Return the step a file is of, without its sketches.

    Raises:
        DumpError: It is cut off or otherwise broken.
    """
    with _opened(path) as file:
        return int(_document(file)["step"])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    require("safetensors", extra="torch")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "numpy") as file:
            yield file
    except (SafetensorError, KeyError, ValueError, IndexError, TypeError) as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be read as sketches ({error})",
            fix="record the step again",
        ) from error


def _document(file: Any) -> Any:
    import orjson

    return orjson.loads(file.get_tensor("document").tobytes())


def _table(path: Path, file: Any) -> RecordTable:
    import numpy as np

    stated = _document(file)
    names, phases, updates, orders, dtypes, shapes, numbers = (
        zip(*stated["records"], strict=True) if stated["records"] else ((),) * 7
    )
    moments, totals = file.get_tensor("moments"), file.get_tensor("total")
    return RecordTable(
        source=str(path),
        step=stated["step"],
        rank=stated["rank"],
        keys=tuple(zip(phases, names, updates, strict=True)),
        order=np.array(orders, dtype=np.int64),
        dtypes=dtypes,
        shapes=tuple(map(tuple, shapes)),
        num_elements=np.array(numbers, dtype=np.int64),
        sketch=file.get_tensor("sketch"),
        moments=np.concatenate([moments, totals[:, None]], axis=1),
        counts=file.get_tensor("counts"),
        unaligned=tuple(stated["unaligned"]),
        problems=tuple(stated["problems"]),
        facts=stated["facts"],
    )


READER = Reader(FORMAT, ArtifactKind.LAYERS, sniff, read, sole_role=True)
