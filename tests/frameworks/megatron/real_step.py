"""Train the real Megatron-core for one sketched step on a CPU, for `ranks.run`.

The schedule, the pipeline's messages, the reduction of gradients and the optimizer are Megatron's.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

import real_model  # type: ignore[import-not-found]  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy  # noqa: E402
from on_cpu import CudaMeansCpu, trainable  # type: ignore[import-not-found]  # noqa: E402
from planted import plant  # type: ignore[import-not-found]  # noqa: E402
from ranks import fork_ranks  # type: ignore[import-not-found]  # noqa: E402
from rows import (  # type: ignore[import-not-found]  # noqa: E402
    LEARNING_RATE,
    SIZE,
    WEIGHT_DECAY,
    WHOLE,
    WIDTH,
    padded,
)

from dumps.capture.failures import FailureLog  # noqa: E402
from dumps.capture.megatron_optimizer import owned_ranges  # noqa: E402
from dumps.capture.sketch.local import Local  # noqa: E402
from dumps.capture.sketch.megatron import megatron_parts  # noqa: E402
from dumps.capture.sketch.recorder import Recorder  # noqa: E402
from dumps.capture.sketch.step import sketched_step  # noqa: E402
from dumps.capture.sketch.weights import (  # noqa: E402
    parameters_of,
    record_gradients,
    record_moments,
    record_parameters,
    record_update,
)
from dumps.store.tensor_records import Phase  # noqa: E402

Parts = Sequence[tuple[Any, Local]]

_ALL_TO_ALL = dist.all_to_all_single


def _all_to_all(output: Tensor, own: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Give torch lists of split sizes where Megatron has tensors of them."""

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, Tensor) else value

    given = {name: plain(value) for name, value in kwargs.items()}
    return _ALL_TO_ALL(output, own, *map(plain, args), **given)


dist.all_to_all_single = _all_to_all  # type: ignore[assignment]


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


def train(models: list[Any], config: Any, vocab: int, count: int) -> list[Tensor]:
    """Run forward and backward of all micro-batches, and reduce the gradients.

    Returns:
        the losses that this rank was told.
    """
    ranks = parallel_state.get_data_parallel_world_size()
    losses: list[Tensor] = []

    def forward_step(batches: Any, model: Any) -> Any:
        batch = next(batches)
        attended = batch.pop("attended")
        output = model(**batch)

        def loss(logits: Tensor) -> Any:
            # the schedule and data parallelism take means
            value = loss_of(logits, batch["input_ids"], attended, vocab) * count
            losses.append(value.detach())
            return value, {"loss": value.detach()}

        return output, loss

    for model in models:
        model.zero_grad_buffer()
    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=[micro_batches(count) for _ in models],
        model=models,
        num_microbatches=count // ranks,
        seq_length=WIDTH,
        micro_batch_size=SIZE // count,
        forward_only=False,
    )
    return losses


def seen(models: list[Any], losses: list[Tensor]) -> dict[str, Tensor]:
    """Copy what a capture must leave as it is."""
    gradients = {
        f"{number}.{name}": parameter.main_grad.clone()
        for number, model in enumerate(models)
        for name, parameter in model.named_parameters()
    }
    numbered = {f"loss {number}": loss for number, loss in enumerate(losses)}
    return {**gradients, **numbered, "random state": torch.get_rng_state()}


def copies(model: Any) -> dict[str, Tensor]:
    """Copy the buffers, such as an expert's bias that finishing gradients moves."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def disturb(models: list[Any]) -> None:
    """Move one weight of each rank by its last bit."""
    weight = next(models[0].parameters()).data.view(-1)[:1]
    weight.copy_(torch.nextafter(weight, weight + 1))


def schedule(optimizer: Any) -> None:
    """Set the learning rate, and exempt vectors from weight decay: Megatron's scheduler does it."""
    OptimizerParamScheduler(
        optimizer,
        init_lr=LEARNING_RATE,
        max_lr=LEARNING_RATE,
        min_lr=LEARNING_RATE,
        lr_warmup_steps=0,
        lr_decay_steps=10,
        lr_decay_style="constant",
        start_wd=WEIGHT_DECAY,
        end_wd=WEIGHT_DECAY,
        wd_incr_steps=10,
        wd_incr_style="constant",
    )


def update(recorder: Recorder, parts: Parts, optimizer: Any, distributed: bool) -> None:
    """Sketch gradients, take Megatron's step, and sketch what it does to parameters."""
    owned = owned_ranges(optimizer)
    assert (owned is not None) == distributed
    for model, part in parts:
        record_gradients(recorder, model, local=part, owned=owned)
    before = [parameters_of(model) for model, _ in parts]
    optimizer.step()
    for (model, part), own in zip(parts, before, strict=True):
        record_update(recorder, model, own, local=part)
        for each in () if distributed else optimizer.chained_optimizers:
            record_moments(recorder, model, each.optimizer, local=part)


def do(job: dict[str, Any]) -> None:
    """Load a converted model, train it without and with sketches, and save what came of it."""
    folder, ranks, out = Path(job["folder"]), tuple(job["ranks"]), Path(job["out"])
    hf = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    real_model.start(*ranks)
    config = real_model.settings(hf, ranks, job["grouped"], sequence_parallel=job["sequence"])
    chunks = real_model.chunk_models(hf, config, job["rows"], ranks[3])
    file = real_model.rank_file(folder, ranks)
    saved = torch.load(file, weights_only=False)
    real_model.load(chunks, saved)
    if job["fault"]:
        plant(*job["fault"], chunks)
    is_distributed = job["distributed"]
    models, optimizer = trainable(
        config, chunks, distributed=is_distributed, lr=LEARNING_RATE, epsilon=job["epsilon"]
    )
    fault = job["fault"][0] if job["fault"] else ""
    if fault != "unscheduled":
        schedule(optimizer)
    given = models, config, hf["vocab_size"], job["micro_batches"]
    state, buffers = torch.get_rng_state(), [copies(model) for model in models]
    plain = seen(models, train(*given))
    torch.set_rng_state(state)
    for model, before in zip(models, buffers, strict=True):
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    if fault == "rounding":
        disturb(models)
    rank, parts = dist.get_rank(), megatron_parts(models, hf)
    pairs, log = list(zip(models, parts, strict=True)), FailureLog(out, f"rank {rank}")
    with sketched_step(models, out, 1, log, rank=rank, local=parts, whole=WHOLE) as recorder:
        for model, part in pairs:
            record_parameters(recorder, model, Phase.PARAMETER, local=part)
        watched = seen(models, train(*given))
        update(recorder, pairs, optimizer, is_distributed)
    with sketched_step(models, out, 2, log, rank=rank, local=parts) as recorder:
        for model, part in pairs:
            record_parameters(recorder, model, Phase.PARAMETER, local=part)
    torch.save({"plain": plain, "watched": watched}, out / f"seen_{rank}.pt")
    if parallel_state.get_expert_data_parallel_rank() == 0:
        save(chunks, saved, out / "updated" / file.relative_to(folder))


def save(chunks: Sequence[Any], saved: dict[str, Any], file: Path) -> None:
    """Save the updated weights in the place of those that were loaded."""
    names = [name for name in saved if name.startswith("model")]
    for name, chunk in zip(names, chunks, strict=True):
        state = chunk.state_dict()
        saved[name] = {key: state[key] for key in saved[name]}
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(saved, file)


def main(jobs: Sequence[dict[str, Any]]) -> None:
    """Do jobs one after the other on this rank; a failed one is told in a file of its own."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=90)  # for a rank whose partner has failed
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=limit)
    for job in jobs:
        try:
            with CudaMeansCpu():
                do(job)
        except BaseException:
            Path(f"{job['out']}.error").write_text(traceback.format_exc(), encoding="utf-8")
            raise


if __name__ == "__main__":
    fork_ranks(main)
