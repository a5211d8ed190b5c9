"""The token tensors of rollouts that verl saved: ``tq_batch.pt`` (V1) and ``gen_batch.dp`` (V0).

Their objects are read as data; nothing in them is run.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from align.core.errors import DumpError
from align.core.run import ArtifactKind
from dumps.readers.inert_pickle import Inert, Ragged, read_pickle, unpickle
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.token_tensors import TokenTensors, canonical, holds_ids
from dumps.readers.verl_skip_rollout import GEN_BATCH, TQ_BATCH, step_beside

FORMAT = "verl_saved_tokens"


def read(path: Path, progress: Progress) -> tuple[TokenTensors, ...]:
    """Read ids, masks and positions of one saved step.

    Raises:
        DumpError: It is neither file, or damaged.
    """
    value = read_pickle(path)
    progress(path.stat().st_size)
    tensors, step = _tensors(path, value)
    found = canonical(
        {
            name: tensor.rows if isinstance(tensor, Ragged) else tensor
            for name, tensor in tensors.items()
            if isinstance(tensor, Ragged | np.ndarray)
        }
    )
    if not holds_ids(list(found)):
        raise _broken(path)
    return (TokenTensors(str(path), step, found),)


def _tensors(path: Path, value: Any) -> tuple[Mapping[str, Any], int | None]:
    if isinstance(value, dict) and isinstance(value.get("tensordict"), dict):
        step = value.get("global_steps")
        return value["tensordict"], step if type(step) is int else None
    if isinstance(value, Inert) and value.path.endswith(".DataProto"):
        tensors = value.state[0] if isinstance(value.state, tuple | list) else None
        if isinstance(tensors, bytes):
            tensors = unpickle(tensors, str(path))
        if isinstance(tensors, Mapping):
            return tensors, step_beside(path)
    raise _broken(path)


def _broken(path: Path) -> DumpError:
    return DumpError(
        where=str(path),
        problem="is no rollout that verl saved",
        fix="give a tq_batch.pt or gen_batch.dp of verl's skip.rollout_tq or skip.rollout",
    )


def _sniff(glimpse: Glimpse) -> bool:
    name = glimpse.path.name
    if name == TQ_BATCH:
        return zipfile.is_zipfile(glimpse.path)
    return name == GEN_BATCH and b"DataProto" in glimpse.head


READER = Reader(FORMAT, ArtifactKind.TOKENS, _sniff, read)
