"""Whole tensors of a step, as our captures write them: header first, numbers when asked for."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.weights_safetensors import DTYPES, read_header
from dumps.store.tensor_shards import FORMAT, TensorFile, TensorPart, TokenTable

if TYPE_CHECKING:
    from dumps.store.tensor_shards import Raw

_LENGTH = 8
_STORED = {
    **{"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"},
    **{"int64": "<i8", "uint8": "|u1"},
}


def _sniff(glimpse: Glimpse) -> bool:
    head = glimpse.head[_LENGTH : _LENGTH + 200]
    return head[:16] == b'{"__metadata__":' and b'"' + FORMAT.encode() + b'"' in head


def read(path: Path, progress: Progress) -> TensorFile:
    """Read the names, shapes and tokens of one file.

    Raises:
        DumpError: It is cut off or otherwise broken.
    """
    header, start = read_header(path)
    try:
        stated = json.loads(_mapped(path, header, start, "document").tobytes())
        numbers = sorted({record[5] for record in stated["records"]})
        tables = {i: TokenTable(*_mapped(path, header, start, f"tokens.{i}")) for i in numbers}
        parts = []
        for i, (name, phase, update, shape, first, tokens) in enumerate(stated["records"]):
            key = f"{i:06d}"
            values = partial(_mapped, path, header, start, key)
            dtype = DTYPES[header[key]["dtype"]]
            table = tables[tokens]
            if header[key]["shape"][0] != len(table.keys):
                raise ValueError(f"{name} has {header[key]['shape'][0]} rows, not a row a token")
            parts.append(TensorPart(name, phase, update, tuple(shape), first, dtype, table, values))
        progress(path.stat().st_size)
        return TensorFile(str(path), int(stated["step"]), int(stated["rank"]), tuple(parts))
    except (OSError, KeyError, ValueError, IndexError, TypeError) as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be read as whole tensors ({str(error)[:120]})",
            fix="record the step again",
        ) from error


def _mapped(path: Path, header: Any, start: int, name: str) -> Raw:
    import numpy as np

    entry = header[name]
    dtype, (begin, end) = np.dtype(_STORED[DTYPES[entry["dtype"]]]), entry["data_offsets"]
    if path.stat().st_size < start + end:
        raise ValueError(f"cut off: {path.stat().st_size} of {start + end} bytes")
    if begin == end:
        return np.empty(entry["shape"], dtype)
    return np.memmap(path, dtype, "r", start + begin, tuple(entry["shape"]))


READER = Reader(FORMAT, ArtifactKind.LAYERS, _sniff, read)
