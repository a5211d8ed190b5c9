"""Several processes under torchrun: FSDP2 shards the model, every rank trains on its own rows.

Without torchrun every function here is the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from align.stack.batch import TrainBatch, take_rows

Item = TypeVar("Item")


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if _is_on() else 1


def rank() -> int:
    """Return this process's rank."""
    return dist.get_rank() if _is_on() else 0


def own_rows(batch: TrainBatch) -> TrainBatch:
    """Return this rank's rows of a mini-batch: a contiguous block."""
    if world_size() == 1:
        return batch
    num_rows = len(batch.response_mask)
    return take_rows(batch, _block(torch.arange(num_rows)))


def sum_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Add the metrics of all ranks."""
    if world_size() == 1:
        return dict(metrics)
    everyone: list[Any] = [None] * world_size()
    dist.all_gather_object(everyone, dict(metrics))
    return {name: sum(one[name] for one in everyone) for name in metrics}


def whole(tensor: Tensor) -> Tensor:
    """Return the full value of a sharded tensor, a plain one unchanged."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def _block(rows: Tensor) -> Tensor:
    return torch.tensor_split(rows, world_size())[rank()]


def _is_on() -> bool:
    return dist.is_available() and dist.is_initialized()
