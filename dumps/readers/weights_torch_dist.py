"""Distributed checkpoints of torch, as Megatron-core's ``torch_dist`` format writes them.

A tensor that stacks all layers is offered layer by layer, so that one layer is read at a time.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.optional import require
from dumps.readers.inert_pickle import Inert
from dumps.readers.weights import StoredTensor, WeightFiles, WeightShard
from dumps.readers.weights_torch import Span, load_slice

if TYPE_CHECKING:
    from torch import Tensor

METADATA = ".metadata"
_STACKED = re.compile(r"((?:^|.*\.)layers)\.(?!\d+\.)(.+)")
_OTHER = re.compile(r"^(optimizer|chained_\d+|rng_state|rerun_state_machine)|_extra_state")
_CHECKPOINT = "torch.distributed.checkpoint"
# what the metadata is made of; none of it does anything when it is constructed
_LOADED = {
    *(f"{_CHECKPOINT}.metadata.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *(f"{_CHECKPOINT}.metadata.{kind}StorageMetadata" for kind in ("Tensor", "Bytes", "Chunk")),
    *(f"{_CHECKPOINT}.metadata.{name}" for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
    *(f"{_CHECKPOINT}.filesystem.{name}" for name in ("_StorageInfo", "_StoragePrefix")),
    *("torch.Size", "torch.device", "torch.serialization._get_layout"),
    *("collections.OrderedDict", "builtins.set", "pathlib.PosixPath", "pathlib.WindowsPath"),
}


def read_torch_dist(folder: Path) -> WeightFiles:
    """Read which tensors a distributed checkpoint holds, running nothing that it names.

    Raises:
        DumpError: It is damaged.
        MissingPackageError: torch is not installed.
    """
    metadata = _metadata(folder)
    tensors: dict[str, StoredTensor] = {}
    files = {info.relative_path for info in metadata.storage_data.values()}
    for key, entry in metadata.state_dict_metadata.items():
        if hasattr(entry, "size") and not _OTHER.search(key):
            tensors.update(_stored(folder, metadata, key, entry))
    missing = tuple(str(folder / file) for file in sorted(files) if not (folder / file).is_file())
    return WeightFiles(str(folder), "torch_dist", (WeightShard(tensors),), missing)


def _metadata(folder: Path) -> Any:
    path = folder / METADATA
    require("torch.distributed.checkpoint", extra="torch")
    try:
        found = _Unpickler(io.BytesIO(path.read_bytes())).load()
        _ = found.storage_data.values(), found.state_dict_metadata.items()
        return found
    except (
        *(pickle.UnpicklingError, EOFError, OSError, ImportError, AttributeError),
        *(IndexError, KeyError, TypeError, ValueError, RecursionError),
    ) as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be read as a distributed checkpoint ({str(error)[:120]})",
            fix="copy the folder again, with its hidden file .metadata",
        ) from error


class _Unpickler(pickle.Unpickler):
    """Loads torch's own records; Megatron's save plan and anything else stays inert."""

    def find_class(self, module: str, name: str) -> Any:
        torch = require("torch", extra="torch")
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or f"{module}.{name}" in _LOADED:
            return super().find_class(module, name)
        return type("Inert", (Inert,), {"path": f"{module}.{name}"})


def _stored(folder: Path, metadata: Any, key: str, entry: Any) -> Mapping[str, StoredTensor]:
    shape = tuple(map(int, entry.size))
    dtype = str(entry.properties.dtype).removeprefix("torch.")
    stacked = _STACKED.fullmatch(key)
    if stacked is None:
        load = partial(_load, folder, metadata, key, None)
        return {key: StoredTensor(shape, dtype, str(folder), load)}
    head, rest = stacked.groups()
    return {
        f"{head}.{layer}.{rest}": StoredTensor(
            shape[1:], dtype, str(folder), partial(_load, folder, metadata, key, layer)
        )
        for layer in range(shape[0])
    }


def _load(folder: Path, metadata: Any, key: str, layer: int | None) -> Tensor:
    """Put one tensor together from its chunks, or one layer of a stacked one."""
    torch = require("torch", extra="torch")
    entry = metadata.state_dict_metadata[key]
    low, high = [0] * len(entry.size), list(entry.size)
    if layer is not None:
        low[0], high[0] = layer, layer + 1
    target: Tensor = torch.empty(
        [h - b for b, h in zip(low, high, strict=True)], dtype=entry.properties.dtype
    )
    num_read = 0
    for chunk in entry.chunks:
        start = [max(a, b) for a, b in zip(chunk.offsets, low, strict=True)]
        ends = (o + s for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
        stop = [min(a, b) for a, b in zip(ends, high, strict=True)]
        if all(a < b for a, b in zip(start, stop, strict=True)):
            base = list(chunk.offsets)
            rows = range(start[0] - base[0], stop[0] - base[0]) if base else range(1)
            base[:1] = start[:1]
            piece = _chunk_rows(folder, metadata, key, chunk, rows)
            part = piece[_slices(start, stop, base)]
            target[_slices(start, stop, low)] = part
            num_read += part.numel()
    if num_read != target.numel():
        raise DumpError(
            where=str(folder),
            key=key,
            problem=f"has chunks for {num_read} of {target.numel()} numbers",
            fix="save the checkpoint again; its metadata is incomplete",
        )
    return target[0] if layer is not None else target


def _slices(start: Sequence[int], stop: Sequence[int], base: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(start, stop, base, strict=True))


def _chunk_rows(folder: Path, metadata: Any, key: str, chunk: Any, rows: range) -> Tensor:
    """Read some rows of a chunk.

    Raises:
        DumpError: They are gone, cut off or encoded in a way that is not known.
    """
    records = require("torch.distributed.checkpoint.metadata", extra="torch")
    info = metadata.storage_data.get(records.MetadataIndex(key, chunk.offsets))
    if info is None or getattr(info, "transform_descriptors", None):
        raise DumpError(
            where=str(folder),
            key=key,
            problem="has no bytes, or compressed ones",
            fix="save the checkpoint again without an extension",
        )
    path = folder / info.relative_path
    if not path.is_file():
        raise DumpError(
            where=str(path), key=key, problem="is missing", fix="copy all of the .distcp files"
        )
    return load_slice(path, Span(info.offset, info.length), rows)
