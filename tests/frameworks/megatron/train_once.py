"""Backward passes of the real Megatron-core on a CPU; saves what a rank counts of gradients.

A process of its own, for `ranks.run`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from dumps.capture.megatron_gradients import megatron_gradient_squares
from tests.frameworks.megatron import real_model
from tests.frameworks.megatron.on_cpu import CudaMeansCpu, loss_of, trainable
from tests.frameworks.megatron.ranks import fork_ranks

from megatron.core import parallel_state  # isort: skip
from megatron.core.pipeline_parallel import get_forward_backward_func  # isort: skip

MODEL = {
    **{"model_type": "qwen2", "num_hidden_layers": 4, "hidden_size": 32, "vocab_size": 64},
    **{"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 32},
}


def rows(length: int, micro_batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels [micro_batches, 1, length]; each data rank takes its own."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 64, (micro_batches, 1, length + 1), generator=generator)
    return ids[..., :-1], ids[..., 1:]


def fill(models: list[Any], stage: int, per_stage: int) -> None:
    """Fill parameters by their name in the whole model, so that any layout holds one model."""
    tensor, world = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    for model in models:
        for name, parameter in model.named_parameters():
            parts = name.split(".")
            if parts[:2] == ["decoder", "layers"]:
                parts[2] = str(int(parts[2]) + stage * per_stage)
            whole = ".".join(parts)
            if whole == "output_layer.weight" and model.share_embeddings_and_output_weights:
                whole = "embedding.word_embeddings.weight"
            shape, axis = list(parameter.shape), parameter.partition_dim
            sharded = getattr(parameter, "tensor_model_parallel", False)
            if sharded:
                shape[axis] *= world
            seed = int.from_bytes(whole.encode()[-6:], "little") + sum(whole.encode())
            generator = torch.Generator().manual_seed(seed % 2**31)
            full = 0.2 * torch.randn(shape, generator=generator)
            if not sharded:
                own = 1 + full if "norm" in whole else full
            elif "linear_fc1" in whole:  # gate and up are each cut
                halves = [half.chunk(world)[tensor] for half in full.chunk(2)]
                own = torch.cat(halves)
            else:
                own = full.chunk(world, axis)[tensor]
            parameter.data.copy_(own)


def do(job: dict[str, Any], rank: int) -> None:
    """Run a step up to the gradients, and save names, squares and Megatron's own norm."""
    tensor, pipeline = job["tensor"], job["pipeline"]
    real_model.start(tensor, pipeline, 1, 1)
    hf = {**MODEL, "tie_word_embeddings": job["tied"]}
    config = real_model.settings(hf, (tensor, pipeline, 1, 1), grouped=False)
    config.sequence_parallel = tensor > 1
    models = real_model.chunk_models(hf, config, hf["vocab_size"], 1)
    for model in models:
        for name, parameter in model.named_parameters():
            if not hasattr(parameter, "partition_dim"):
                parameter.partition_dim = -1
            if "norm" in name:
                parameter.sequence_parallel = config.sequence_parallel
    stage = parallel_state.get_pipeline_model_parallel_rank()
    fill(models, stage, hf["num_hidden_layers"] // pipeline)
    chunks, optimizer = trainable(config, models, distributed=job["distributed"])
    ids, labels = rows(16, 4)
    data, of = (
        parallel_state.get_data_parallel_rank(),
        parallel_state.get_data_parallel_world_size(),
    )
    own = list(zip(ids, labels, strict=True))[data::of]
    batches = iter(own)

    def forward(iterator: Any, model: Any) -> Any:
        tokens, wanted = next(iterator)
        places = torch.arange(16)[None]
        mask = torch.triu(torch.ones(1, 1, 16, 16, dtype=torch.bool), 1)
        return model(input_ids=tokens, position_ids=places, attention_mask=mask), loss_of(wanted)

    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=batches,
        model=chunks,
        num_microbatches=len(own),
        seq_length=16,
        micro_batch_size=1,
        forward_only=False,
    )
    names, squares = megatron_gradient_squares(chunks, optimizer)
    optimizer.prepare_grads()
    found: dict[str, Any] = {"squares": dict(zip(names, squares.tolist(), strict=True))}
    found["norm"] = float(optimizer.get_grad_norm())
    with open(f"{job['out']}.{rank}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)


def main(jobs: Sequence[dict[str, Any]]) -> None:
    """Do jobs one after the other on this rank."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    with CudaMeansCpu():
        for job in jobs:
            do(job, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
