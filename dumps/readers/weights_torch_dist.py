"""Distributed checkpoints of torch, as Megatron-core's ``torch_dist`` format writes them.

A tensor that stacks all layers is offered layer by layer, so that one layer is read at a time.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.optional import require
from dumps.readers.inert_pickle import Inert
from dumps.readers.weights import StoredTensor, WeightFiles, WeightShard

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


def _reader(folder: Path) -> Any:
    return require("torch.distributed.checkpoint", extra="torch").FileSystemReader(str(folder))


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
    """Read one tensor, or one layer of a stacked one."""
    torch = require("torch", extra="torch")
    checkpoint = require("torch.distributed.checkpoint.planner", extra="torch")
    helpers = require("torch.distributed.checkpoint.planner_helpers", extra="torch")
    default = require("torch.distributed.checkpoint.default_planner", extra="torch")
    meta = require("torch.distributed.checkpoint.metadata", extra="torch")
    entry = metadata.state_dict_metadata[key]
    offsets = [0] * len(entry.size)
    sizes = list(entry.size)
    if layer is not None:
        offsets[0], sizes[0] = layer, 1
    chunk = meta.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    target = torch.empty(sizes, dtype=entry.properties.dtype)
    items = helpers.create_read_items_for_chunk_list(key, entry, [chunk])
    reader = _reader(folder)
    reader.set_up_storage_reader(metadata, True)
    planner = default.DefaultLoadPlanner()
    planner.set_up_planner({key: target}, metadata, True)
    planner.lookup_tensor = lambda index: target
    plan = reader.prepare_local_plan(checkpoint.LoadPlan(items))
    try:
        reader.read_data(plan, planner).wait()
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise DumpError(
            where=str(folder),
            key=key,
            problem=f"cannot be read ({str(error)[:120]})",
            fix="copy the checkpoint again, with all of its .distcp files",
        ) from error
    found: Tensor = target[0] if layer is not None else target
    return found
