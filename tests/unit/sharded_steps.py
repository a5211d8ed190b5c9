"""Sketch one step of a model wrapped for data parallelism, as one of two processes on a CPU.

Started as a script by `test_sketch_wrappers`, since every wrapper needs a process group.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch import nn

from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import (
    parameters_of,
    record_gradients,
    record_moments,
    record_parameters,
    record_update,
)
from dumps.store.tensor_records import Phase
from tests.unit.layer_runs import batch, tiny_qwen2

WRAPPERS = ("bare", "ddp", "fsdp1", "fsdp1_original", "fsdp1_unsharded", "fsdp2", "fsdp2_hybrid")


def wrapped(kind: str, model: Any) -> nn.Module:
    """Return the model in a wrapper, each layer by itself too where the wrapper is FSDP."""
    layers = model.model.layers
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

        unsharded = kind == "fsdp1_unsharded"
        settings: dict[str, Any] = {
            "use_orig_params": kind == "fsdp1_original",
            "device_id": torch.device("cpu"),
            "sharding_strategy": ShardingStrategy.NO_SHARD
            if unsharded
            else ShardingStrategy.FULL_SHARD,
        }
        for number in range(len(layers)):
            layers[number] = FullyShardedDataParallel(layers[number], **settings)
        return FullyShardedDataParallel(model, **settings)
    if kind.startswith("fsdp2"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        is_hybrid = kind == "fsdp2_hybrid"
        shape = (2, 1) if is_hybrid else (2,)
        names = ("replicate", "shard") if is_hybrid else ("shard",)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def step(kind: str, folder: Path) -> None:
    """Sketch forward, backward and an update of this process's rows."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = wrapped(kind, tiny_qwen2())
    inputs = batch()
    total = inputs["attention_mask"].sum()
    own = {name: tensor[rank::world] for name, tensor in inputs.items()}
    mask = own["attention_mask"].bool()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    log = FailureLog(folder, f"rank {rank}")
    with sketched_step(model, folder, 1, log, rank=rank) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER)
        logits = model(**own).logits.float()
        loss = nn.functional.cross_entropy(logits[mask], own["input_ids"][mask], reduction="sum")
        (loss / total * world).backward()
        record_gradients(recorder, model)
        before = parameters_of(model)
        optimizer.step()
        record_update(recorder, model, before)
        record_moments(recorder, model, optimizer)


def main(root: Path, rank: int, store: str) -> None:
    """Sketch a step in every wrapper."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for kind in WRAPPERS[1:]:
        try:
            step(kind, root / kind)
        except Exception:
            (root / f"{kind}.error").write_text(traceback.format_exc(), encoding="utf-8")
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
