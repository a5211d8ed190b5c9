"""Any checkpoint: which format a path holds, and its tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from align.core.errors import ConfigError, DumpError
from dumps.readers.weights import WeightFiles, WeightShard
from dumps.readers.weights_megatron import iteration_folder, rank_files, read_megatron
from dumps.readers.weights_safetensors import read_safetensors
from dumps.readers.weights_torch import read_torch, stored_tensors
from dumps.readers.weights_torch_dist import METADATA, read_torch_dist


def read_checkpoint(path: Path, *, unsafe: bool = False) -> WeightFiles:
    """Read the headers of a checkpoint of any format.

    Args:
        unsafe: read pickles that could run programs, too.

    Raises:
        DumpError: There is none, it is damaged, or reading it safely is impossible.
    """
    if path.is_file():
        return (
            read_safetensors(path)
            if path.suffix == ".safetensors"
            else _torch(path, [path], unsafe)
        )
    folder = iteration_folder(path)
    if (folder / METADATA).is_file():
        return read_torch_dist(folder)
    if rank_files(folder):
        return read_megatron(path, unsafe=unsafe)
    if any(folder.glob("*.safetensors")) or any(folder.glob("*.safetensors.index.json")):
        return read_safetensors(folder)
    bins = sorted(folder.glob("pytorch_model*.bin"))
    if bins:
        return _torch(path, bins, unsafe)
    raise DumpError(
        where=str(path),
        problem="holds no weights that are known here"
        if path.is_dir()
        else "is neither a file nor a folder",
        fix="give a folder with *.safetensors, mp_rank_*/model_optim_rng.pt, "
        ".metadata and *.distcp, or pytorch_model*.bin",
    )


def _torch(path: Path, files: list[Path], unsafe: bool) -> WeightFiles:
    tensors = {}
    for file in files:
        tensors.update(stored_tensors(file, read_torch(file, unsafe=unsafe)))
    return WeightFiles(str(path), "torch", (WeightShard(tensors),))


def find_model_config(*paths: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the first ``config.json`` that is one of these paths, in one of them or beside a file.

    Raises:
        ConfigError: It is no JSON object.
    """
    for path in paths:
        folder = path if path.is_dir() else path.parent
        file = path if path.suffix == ".json" else folder / "config.json"
        if file.is_file():
            return file, _json(file)
    return None


def _json(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, Mapping):
            raise ValueError("a list or a single value")
    except (OSError, ValueError) as error:
        raise ConfigError(
            where=str(file),
            problem=f"is no JSON object ({error})",
            fix="copy it again from the model's folder",
        ) from error
    return found
