"""Several processes under torchrun: FSDP2 shards the models, every rank works on its own rows.

    torchrun --nproc-per-node 2 --no-python align train trainer.n_gpus_per_node=2

Every rank holds the whole training batch (it is small) and a whole rollout model; generation,
log-probabilities and updates are split by rows. Without torchrun every function here is the
identity.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from align.core.errors import ConfigError
from align.stack.batch import TrainBatch

if TYPE_CHECKING:
    from align.stack.config import StackConfig

Item = TypeVar("Item")

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def join(config: StackConfig) -> None:
    """Join the process group that torchrun describes; nothing without torchrun.

    Raises:
        ConfigError: It starts another number of processes than the configuration says, or the
            numerics profile cannot be sharded.
    """
    stated = config.trainer.nnodes * config.trainer.n_gpus_per_node
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if stated != started:
        raise ConfigError(
            where="configuration",
            key="trainer.n_gpus_per_node",
            problem=f"times nnodes is {stated}, but {started} processes run",
            fix=f"start with `torchrun --nproc-per-node {config.trainer.n_gpus_per_node}"
            " --no-python align train …`, or set it to what torchrun starts",
        )
    if started == 1:
        return
    profile = config.stack.numerics.profile
    if profile not in ("float64", "float32", "bfloat16"):
        raise ConfigError(
            where="configuration",
            key="stack.numerics.profile",
            problem=f"{profile!r} works in one process alone",
            fix="use float64, float32 or bfloat16",
        )
    if not _is_on():
        dist.init_process_group(_BACKENDS[config.trainer.device])


def leave() -> None:
    """Leave the process group, all ranks together: one that ends early makes torchrun stop all."""
    if _is_on():
        dist.barrier()
        dist.destroy_process_group()


def shard(model: Any, config: StackConfig) -> Any:
    """Shard a model layer by layer with FSDP2, in place; gradients are averaged over ranks."""
    if world_size() == 1:
        return model
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    narrow = torch.bfloat16 if config.stack.numerics.profile == "bfloat16" else None
    reduced = _DTYPES[config.actor.fsdp_config.mixed_precision.reduce_dtype] if narrow else None
    if config.stack.numerics.profile == "float64":
        model.double()
    policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=reduced)
    for layer in model.base_model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if _is_on() else 1


def rank() -> int:
    """Return this process's rank."""
    return dist.get_rank() if _is_on() else 0


def wait() -> None:
    """Wait for the other ranks."""
    if world_size() > 1:
        dist.barrier()


def even(num_rows: int, unit: int = 1) -> int:
    """Return the greatest number of rows, at most this many, of which every rank gets as many.

    Rows beyond it are left out, which happens after dynamic sampling and when pairs are formed.
    """
    return num_rows - num_rows % (unit * world_size()) if world_size() > 1 else num_rows


def own_rows(batch: TrainBatch) -> TrainBatch:
    """Return this rank's rows of a batch: a contiguous block."""
    return batch if world_size() == 1 else batch.rows(_block(len(batch)))


def gather_rows(own: Tensor) -> Tensor:
    """Return the blocks of all ranks, [b, …], from blocks of equal size."""
    if world_size() == 1:
        return own
    blocks = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(blocks, own.contiguous())
    return torch.cat(blocks)


def own_block(items: Sequence[Item]) -> Sequence[Item]:
    """Return this rank's contiguous block of a list."""
    return items if world_size() == 1 else [items[i] for i in _block(len(items))]


def gather_list(own: Sequence[Item]) -> list[Item]:
    """Return the blocks of all ranks, joined in the order of ranks."""
    if world_size() == 1:
        return list(own)
    everyone: list[Any] = [None] * world_size()
    dist.all_gather_object(everyone, list(own))
    return [item for block in everyone for item in block]


def sum_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Add the metrics of all ranks."""
    everyone = gather_list([dict(metrics)])
    return {name: sum(one[name] for one in everyone) for name in metrics}


def whole(tensor: Tensor) -> Tensor:
    """Return the full value of a sharded tensor, a plain one unchanged; all ranks must call it."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Overwrite a tensor with a whole value, of which a sharded one takes its part."""
    target.copy_(part_of(value.to(target.device, target.dtype), target))


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole value sharded like another tensor, unchanged for a plain one."""
    mesh = getattr(like, "device_mesh", None)
    if mesh is None or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), mesh, like.placements)  # type: ignore[attr-defined]


def num_sharded(model: nn.Module) -> int:
    """Return how many parameters are sharded."""
    return sum(hasattr(p, "full_tensor") for p in model.parameters())


def _block(num_items: int) -> list[int]:
    blocks = torch.tensor_split(torch.arange(num_items), world_size())
    return [int(i) for i in blocks[rank()]]


def _is_on() -> bool:
    return dist.is_available() and dist.is_initialized()
