"""The tensors of a checkpoint as its files hold them: header first, numbers when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Args:
        shape: as stored.
        dtype: torch's name without "torch.".
        source: the file.
        load: reads the numbers; a view of mapped memory where the format allows it.
    """

    shape: tuple[int, ...]
    dtype: str
    source: str
    load: Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class WeightShard:
    """What one rank wrote; a checkpoint that is not sharded by rank has one of these.

    Args:
        tensors: by name.
        tensor_rank: within the tensor-parallel group.
        pipeline_rank: pipeline stage.
        expert_rank: within the expert-parallel group.
        chunk: virtual pipeline chunk of the stage.
    """

    tensors: Mapping[str, StoredTensor]
    tensor_rank: int = 0
    pipeline_rank: int = 0
    expert_rank: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """A checkpoint.

    Args:
        path: as given.
        format: "safetensors", "torch", "megatron" or "torch_dist".
        shards: one a rank and virtual chunk.
        missing: files that an index or the numbering of ranks names and that are not there.
        arguments: what a Megatron checkpoint keeps of its command line.
    """

    path: str
    format: str
    shards: tuple[WeightShard, ...]
    missing: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
