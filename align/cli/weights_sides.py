"""A checkpoint as the weights commands take it: a path in, its Hugging Face tensors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from align.core.errors import ConfigError
from align.layout.family import Family, family_of
from align.layout.sizes import sizes_of
from align.weights.checkpoint import Checkpoint, open_checkpoint
from dumps.readers.weights import WeightFiles
from dumps.readers.weights_checkpoint import find_model_config, read_checkpoint


@dataclass(frozen=True, slots=True)
class Side:
    """A checkpoint with the model it is of."""

    path: Path
    checkpoint: Checkpoint
    family: Family
    config_file: Path
    config: Mapping[str, Any]


def open_side(
    path: Path,
    config: Path | None,
    fallback: Sequence[Path],
    *,
    unsafe: bool,
    drop: Sequence[str] = (),
) -> Side:
    """Read a checkpoint's headers and the model's configuration.

    Args:
        config: as given; else the checkpoint's own is looked for, then those of ``fallback``.
        drop: patterns of stored names to leave out.

    Raises:
        AlignError: One of them cannot be read, or no rules are known for the model.
    """
    files = _without(read_checkpoint(path, unsafe=unsafe), drop)
    found = find_model_config(*([config] if config else [path, *fallback]))
    if found is None:
        raise ConfigError(
            where=str(config or path),
            problem="has no config.json, which says how the tensors are built",
            fix="give the model's config.json with --config",
        )
    file, values = found
    family = family_of(values, where=str(file))
    sizes = sizes_of(values, where=str(file))
    return Side(path, open_checkpoint(files, family, sizes), family, file, values)


def _without(files: WeightFiles, patterns: Sequence[str]) -> WeightFiles:
    if not patterns:
        return files
    shards = []
    for shard in files.shards:
        kept = {
            name: tensor
            for name, tensor in shard.tensors.items()
            if not any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        shards.append(replace(shard, tensors=kept))
    return replace(files, shards=tuple(shards))
