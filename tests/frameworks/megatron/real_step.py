"""Train the real Megatron-core for one sketched step on a CPU, in a process of its own.

The schedule, the pipeline's messages and the reduction of gradients are Megatron's.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

import real_model  # type: ignore[import-not-found]  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy  # noqa: E402
from rows import SIZE, WIDTH, padded  # type: ignore[import-not-found]  # noqa: E402

from dumps.capture.failures import FailureLog  # noqa: E402
from dumps.capture.sketch.megatron import megatron_parts  # noqa: E402
from dumps.capture.sketch.step import sketched_step  # noqa: E402
from dumps.capture.sketch.weights import record_gradients, record_parameters  # noqa: E402
from dumps.store.tensor_records import Phase  # noqa: E402


class _OnCpu(TorchFunctionMode):
    """Makes on the CPU what Megatron asks for on "cuda" by name."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        return func(*args, **given)


_ALL_TO_ALL = dist.all_to_all_single


def _all_to_all(output: Tensor, own: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Give torch lists of split sizes where Megatron has tensors of them."""

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, Tensor) else value

    given = {name: plain(value) for name, value in kwargs.items()}
    return _ALL_TO_ALL(output, own, *map(plain, args), **given)


dist.all_to_all_single = _all_to_all  # type: ignore[assignment]


def owned_ranges(model: Any) -> dict[int, tuple[int, int]]:
    """Return the part of each gradient that Megatron's distributed optimizer reduces here."""
    ranges = {}
    for buffer in (*model.buffers, *model.expert_parallel_buffers):
        for parameter, (start, end, number) in buffer.param_index_map.items():
            bucket = buffer.buckets[number]
            length = bucket.grad_data.numel() // buffer.data_parallel_world_size
            first = bucket.offset + length * buffer.data_parallel_group.rank()
            low, high = max(start, first) - start, min(end, first + length) - start
            if low < high:
                ranges[id(parameter)] = (low, high)
    return ranges


def micro_batches(count: int) -> Iterator[dict[str, Tensor]]:
    """Yield rows of unequal length, padded on the right as Megatron's masks say it."""
    ids, attended = padded("right")
    size, rank = len(ids) // count, parallel_state.get_data_parallel_rank()
    ranks = parallel_state.get_data_parallel_world_size()
    causal = torch.ones(WIDTH, WIDTH, dtype=torch.bool).tril()
    for number in range(rank, count, ranks):
        rows = slice(number * size, (number + 1) * size)
        seen = causal & attended[rows, None, :].bool() & attended[rows, :, None].bool()
        yield {
            "input_ids": ids[rows],
            "position_ids": torch.arange(WIDTH).expand(size, -1).contiguous(),
            "attention_mask": ~seen[:, None],
            "attended": attended[rows],
        }


def loss_of(logits: Tensor, ids: Tensor, attended: Tensor, vocab: int) -> Tensor:
    """Return the cross-entropy of the attended tokens, as a share of all rows' mean."""
    own = logits.shape[-1]
    first = own * parallel_state.get_tensor_model_parallel_rank()
    padding = torch.arange(first, first + own) >= vocab
    losses = vocab_parallel_cross_entropy(logits.float().masked_fill(padding, -1e4), ids)
    return (losses * attended).sum() / padded("right")[1].sum()


def train(models: list[Any], config: Any, vocab: int, count: int) -> None:
    """Run forward and backward of all micro-batches, and reduce the gradients."""
    ranks = parallel_state.get_data_parallel_world_size()

    def forward_step(batches: Any, model: Any) -> Any:
        batch = next(batches)
        attended = batch.pop("attended")
        output = model(**batch)

        def loss(logits: Tensor) -> Any:
            # the schedule and data parallelism take means
            value = loss_of(logits, batch["input_ids"], attended, vocab) * count
            return value, {"loss": value.detach()}

        return output, loss

    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=[micro_batches(count) for _ in models],
        model=models,
        num_microbatches=count // ranks,
        seq_length=WIDTH,
        micro_batch_size=SIZE // count,
        forward_only=False,
    )


def do(job: dict[str, Any]) -> None:
    """Load a converted model, and sketch one step of it."""
    folder, ranks, out = Path(job["folder"]), tuple(job["ranks"]), Path(job["out"])
    hf = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    real_model.start(*ranks)
    config = real_model.settings(hf, ranks, job["grouped"], sequence_parallel=job["sequence"])
    config.finalize_model_grads_func = finalize_model_grads
    chunks = real_model.chunk_models(hf, config, job["rows"], ranks[3])
    saved = torch.load(real_model.rank_file(folder, ranks), weights_only=False)
    real_model.load(chunks, saved)
    kind = DistributedDataParallelConfig(
        overlap_grad_reduce=False, use_distributed_optimizer=job["distributed"]
    )
    models = [DistributedDataParallel(config, kind, chunk) for chunk in chunks]
    rank, parts = dist.get_rank(), megatron_parts(models, hf)
    log = FailureLog(out, f"rank {rank}")
    with _OnCpu(), sketched_step(models, out, 1, log, rank=rank, local=parts) as recorder:
        for model, part in zip(models, parts, strict=True):
            record_parameters(recorder, model, Phase.PARAMETER, local=part)
        train(models, config, hf["vocab_size"], job["micro_batches"])
        for model, part in zip(models, parts, strict=True):
            owned = owned_ranges(model) if job["distributed"] else None
            record_gradients(recorder, model, local=part, owned=owned)


def main(jobs: list[dict[str, Any]]) -> None:
    """Do jobs one after the other on this rank; a failed one is told in a file of its own."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=90)  # for a rank whose partner has failed
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=limit)
    for job in jobs:
        try:
            do(job)
        except BaseException:
            Path(f"{job['out']}.error").write_text(traceback.format_exc(), encoding="utf-8")
            raise


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
