"""One captured step of the real Megatron-core on a CPU, with each of its optimizers.

A process of its own, for `tests.frameworks.megatron.ranks.run`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dumps.capture.device import copied
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.megatron import megatron_parts
from dumps.capture.step_sketches import StepSketches
from tests.frameworks.megatron import real_model
from tests.frameworks.megatron.on_cpu import CudaMeansCpu, loss_of
from tests.frameworks.megatron.ranks import fork_ranks
from tests.frameworks.megatron.train_once import MODEL, fill, rows
from tests.frameworks.megatron_optimizers.cases import CLIP, LEARNING_RATE, SCALE

from megatron.core import parallel_state  # isort: skip
from megatron.core.distributed import DistributedDataParallel  # isort: skip
from megatron.core.distributed import DistributedDataParallelConfig  # isort: skip
from megatron.core.distributed import finalize_model_grads  # isort: skip
from megatron.core.optimizer import distrib_optimizer  # isort: skip
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # isort: skip
from megatron.core.pipeline_parallel import get_forward_backward_func  # isort: skip
from megatron.core.transformer.module import Float16Module  # isort: skip

LENGTH, MICRO_BATCHES = 16, 4

# of 8-bit parameters alone, but it refuses to be called at all without Transformer Engine
distrib_optimizer.quantize_param_shard = lambda *args, **kwargs: None


def built(job: dict[str, Any]) -> tuple[list[Any], Any, dict[str, Any]]:
    """Return the chunks, the optimizer, and the model's ``config.json``."""
    real_model.start(1, 1, 1, 1)
    hf: dict[str, Any] = {**MODEL, "tie_word_embeddings": False}
    config = real_model.settings(hf, (1, 1, 1, 1), grouped=False)
    models = real_model.chunk_models(hf, config, hf["vocab_size"], 1)
    for parameter in models[0].parameters():
        if not hasattr(parameter, "partition_dim"):
            parameter.partition_dim = -1
    fill(models, 0, hf["num_hidden_layers"])
    narrow = {"bf16": job["dtype"] == "bfloat16", "fp16": job["dtype"] == "float16"}
    for name, is_so in narrow.items():
        setattr(config, name, is_so)
    if any(narrow.values()):
        models = [Float16Module(config, model) for model in models]
    buffers = DistributedDataParallelConfig(
        use_distributed_optimizer=job["distributed"], grad_reduce_in_fp32=True
    )
    chunks = [DistributedDataParallel(config, buffers, model) for model in models]
    config.finalize_model_grads_func = finalize_model_grads
    settings = OptimizerConfig(
        optimizer="adam",
        lr=LEARNING_RATE,
        weight_decay=0.0,
        clip_grad=CLIP,
        use_distributed_optimizer=job["distributed"],
        loss_scale=SCALE if job["dtype"] == "float16" else None,
        params_dtype=getattr(torch, job["dtype"]),
        **narrow,
    )
    optimizer = get_megatron_optimizer(settings, chunks, use_gloo_process_groups=False)
    config.grad_scale_func = optimizer.scale_loss
    return chunks, optimizer, hf


def backward(chunks: list[Any]) -> None:
    """Run forward and backward of this data rank's micro-batches."""
    ids, labels = rows(LENGTH, MICRO_BATCHES)
    ranks = parallel_state.get_data_parallel_world_size()
    own = list(zip(ids, labels, strict=True))[parallel_state.get_data_parallel_rank() :: ranks]

    def forward(iterator: Any, model: Any) -> Any:
        tokens, wanted = next(iterator)
        output = model(
            input_ids=tokens,
            position_ids=torch.arange(LENGTH)[None],
            attention_mask=torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1),
        )
        return output.float(), loss_of(wanted)

    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter(own),
        model=chunks,
        num_microbatches=len(own),
        seq_length=LENGTH,
        micro_batch_size=1,
        forward_only=False,
    )


def do(job: dict[str, Any], rank: int) -> None:
    """Train one step under sketches, and write them."""
    chunks, optimizer, hf = built(job)
    folder = Path(job["out"])
    log = FailureLog(folder, f"rank {rank}")
    sketches = StepSketches(log, local=megatron_parts(chunks, hf))
    sketches.begin(chunks, None, optimizer=optimizer)
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    backward(chunks)
    after = sketches.update(chunks, optimizer)
    updated, norm, _ = optimizer.step()
    assert updated
    after()
    for part in sketches.end(1, rank):
        for name, write in part.writes(copied(part.tensors())).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
    (folder / f"norm_{rank}").write_text(repr(float(norm)), encoding="utf-8")


def main(jobs: Sequence[dict[str, Any]]) -> None:
    """Do jobs one after the other on this rank."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    with CudaMeansCpu():
        for job in jobs:
            do(job, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
