"""Whole tensors of a captured step: what a file of them holds, and where it lies in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Raw = npt.NDArray[Any]
    Int64 = npt.NDArray[np.int64]

FORMAT = "align_tensors_1"
FOLDER = "tensors"


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """The rows of a tensor, int64 [n] each.

    Args:
        keys: of the tokens: equal for equal prefixes of equal sequences.
        places: counted from 0 within each token's own sequence; -1 where unknown.
        rows: of the batch, each of which may hold several packed sequences.
    """

    keys: Int64
    places: Int64
    rows: Int64


@dataclass(frozen=True, slots=True, eq=False)
class TensorPart:
    """One tensor of one forward or backward pass of one rank.

    Args:
        name: canonical, of the module.
        phase: see `dumps.store.tensor_records.Phase`.
        update: optimizer step within the training step, from 0.
        shape: in the model.
        first_feature: canonical index of the first column.
        dtype: torch's name.
        tokens: what the rows are.
        values: maps the numbers, [tokens, features]; bfloat16 as raw 16 bits.
    """

    name: str
    phase: str
    update: int
    shape: tuple[int, ...]
    first_feature: int
    dtype: str
    tokens: TokenTable
    values: Callable[[], Raw]


@dataclass(frozen=True, slots=True, eq=False)
class TensorFile:
    """One rank's whole tensors of one step, in the order they were computed."""

    source: str
    step: int
    rank: int
    parts: tuple[TensorPart, ...]


def shard_path(folder: Path, step: int, rank: int) -> Path:
    """Return where a run folder keeps the whole tensors of a step."""
    return folder / FOLDER / f"rank_{rank}" / f"{step}.safetensors"
