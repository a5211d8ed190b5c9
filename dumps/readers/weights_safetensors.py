"""Weights in safetensors: one file, or shards with their index."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.optional import require
from dumps.readers.weights import StoredTensor, WeightFiles, WeightShard

if TYPE_CHECKING:
    from torch import Tensor

_MAX_HEADER_BYTES = 1 << 28
_VLLM_RANK = re.compile(r"model-rank-(\d+)-part-")  # vLLM's sharded_state, one rank's own tensors
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def read_safetensors(path: Path) -> WeightFiles:
    """Read the headers of a file, or of every shard in a folder.

    Raises:
        DumpError: A header is damaged, or there is no such file.
        MissingPackageError: safetensors is not installed.
    """
    files, missing = _files(path)
    by_rank: dict[int, dict[str, StoredTensor]] = {}
    for file in files:
        match = _VLLM_RANK.match(file.name)
        by_rank.setdefault(int(match.group(1)) if match else 0, {}).update(_stored(file))
    shards = (WeightShard(tensors, rank) for rank, tensors in sorted(by_rank.items()))
    return WeightFiles(str(path), "safetensors", tuple(shards), tuple(missing))


def _files(path: Path) -> tuple[list[Path], list[str]]:
    """Return the files that are there, and those that the index names besides."""
    if path.is_file():
        return [path], []
    found = sorted(path.glob("*.safetensors"))
    for index in sorted(path.glob("*.safetensors.index.json")):
        named = sorted(set(_weight_map(index).values()))
        return (
            [path / name for name in named if (path / name).is_file()],
            [str(path / name) for name in named if not (path / name).is_file()],
        )
    return found, []


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): Path(str(file)).name for name, file in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DumpError(
            where=str(index),
            problem=f"is no index of shards ({error})",
            fix="copy it again from the checkpoint",
        ) from error


def _stored(file: Path) -> dict[str, StoredTensor]:
    header, start = read_header(file)
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            load = partial(_load, file, name)
            shape = tuple(map(int, entry["shape"]))
            found[name] = StoredTensor(shape, DTYPES[entry["dtype"]], str(file), load)
    entries = (entry for name, entry in header.items() if name != "__metadata__")
    end = max((entry["data_offsets"][1] for entry in entries), default=0)
    if file.stat().st_size < start + end:
        raise _damaged(file, f"holds {file.stat().st_size} of {start + end} bytes")
    return found


def read_header(file: Path) -> tuple[Mapping[str, Any], int]:
    """Return a file's header and the offset at which its numbers begin.

    Raises:
        DumpError: It is damaged.
    """
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 2 <= size <= _MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            header = json.loads(stream.read(size))
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] not in DTYPES:
                raise ValueError(f"{name} has the unknown dtype {entry['dtype']}")
            if name != "__metadata__":
                _ = entry["shape"], entry["data_offsets"][1]
        return header, 8 + size
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise _damaged(file, str(error)[:120]) from error


def _load(file: Path, name: str) -> Tensor:
    safetensors = require("safetensors", extra="torch")
    try:
        with safetensors.safe_open(str(file), framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor
    except (safetensors.SafetensorError, OSError) as error:
        raise _damaged(file, str(error)[:120]) from error


def _damaged(file: Path, problem: str) -> DumpError:
    return DumpError(
        where=str(file),
        problem=f"cannot be read as safetensors ({problem})",
        fix="copy the file again; its download or its save was cut off",
    )
