"""The actor's update: mini-batches of prompts, micro-batches of sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from align.objective.aggregate import GlobalBatch
from align.stack import sharding
from align.stack.batch import TrainBatch
from align.stack.update_log import UpdateLog, norm_of_gradients

if TYPE_CHECKING:
    from align.stack.config import StackConfig
    from align.stack.pipeline import Model, Pipeline

NORM_OF_GRADIENTS = "align/norm_of_gradients"  # recomputed, beside the actor/grad_norm reported


def update_actor(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batch: TrainBatch,
    config: StackConfig,
    pipeline: Pipeline,
    step: int,
    log: UpdateLog,
) -> dict[str, float]:
    """Train on a batch, and return verl's metrics of it, averaged over the mini-batches.

    Args:
        step: training step from 0, for the learning rate.
        log: is given what every update computes with.
    """
    model.train()
    batch = replace(batch, position=torch.arange(len(batch), device=batch.input_ids.device))
    collected: list[Mapping[str, float]] = []
    unit = 2 if config.stack.algorithm == "dpo" else 1
    batch = batch.rows(slice(sharding.even(len(batch), unit)))
    size = config.actor.ppo_mini_batch_size * rows_per_prompt(config)
    minis = mini_batches(batch, size, config.actor.ppo_epochs, _shuffle_seed(config))
    for update, mini in enumerate(minis):
        metrics = accumulate(model, mini, config, pipeline, log)
        pipeline.reduce_gradients(model)
        own_norm = norm_of_gradients(model)
        norm = pipeline.clip_gradients(model, config.actor.optim.clip_grad)
        rate = pipeline.learning_rate(config, step, update)
        if math.isfinite(norm):
            pipeline.optimizer_step(optimizer, rate)
        else:  # as verl: this update is left out
            optimizer.zero_grad(set_to_none=True)
        collected.append({**metrics, "actor/grad_norm": norm})
        log.end_update({**collected[-1], "actor/lr": rate, NORM_OF_GRADIENTS: own_norm})
    # verl reads the rate after stepping the scheduler
    return {**mean_of(collected), "actor/lr": pipeline.learning_rate(config, step + 1, 0)}


def accumulate(
    model: Model, mini: TrainBatch, config: StackConfig, pipeline: Pipeline, log: UpdateLog
) -> dict[str, float]:
    """Add up the gradients of a mini-batch's micro-batches on this rank."""
    totals = GlobalBatch(
        dp_size=sharding.world_size(),
        num_tokens=int(mini.response_mask.sum()),
        num_sequences=len(mini),
        loss_scale_factor=config.actor.loss_scale_factor,
    )
    summed: dict[str, float] = {}
    averaged: dict[str, float] = {}
    own = sharding.own_rows(mini)
    size = config.actor.ppo_micro_batch_size_per_gpu
    for number, micro in enumerate(
        micro_batches(own, size), sharding.rank() * math.ceil(len(own) / size)
    ):
        log_probs, entropy = pipeline.log_probs(model, micro, config)
        log.add_micro_batch(micro, number, log_probs, entropy)
        loss = pipeline.loss(micro, log_probs, entropy, config, totals)
        pipeline.backward(loss.total, model)
        share = int(micro.response_mask.sum()) / max(1, totals.num_tokens or 1)
        for name, value in loss.summed.items():
            summed[name] = summed.get(name, 0.0) + value / totals.dp_size
        for name, value in loss.averaged.items():
            averaged[name] = averaged.get(name, 0.0) + value * share
    return sharding.sum_metrics({**summed, **averaged})


def backward(loss: Tensor, model: nn.Module) -> None:
    """Add the gradients of a micro-batch's loss."""
    torch.autograd.backward(loss)


def reduce_gradients(model: nn.Module) -> None:
    """Combine gradients over ranks: nothing to do, FSDP2 has done so in backward."""


def clip_gradients(model: nn.Module, max_norm: float) -> float:
    """Scale the gradients down to a norm, and return the norm they had."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return float(sharding.whole(norm))


def rows_per_prompt(config: StackConfig) -> int:
    """Return how many rows of the training batch a prompt has: n, or a pair for dpo."""
    return 2 if config.stack.algorithm == "dpo" else config.rollout.n


def mini_batches(
    batch: TrainBatch, size: int, num_epochs: int, shuffle_seed: int | None = None
) -> Iterator[TrainBatch]:
    """Yield mini-batches of ``size`` rows, epoch after epoch; the last may be smaller."""
    num_rows = len(batch)
    generator = torch.Generator()
    if shuffle_seed is not None:
        generator.manual_seed(shuffle_seed)
    for _ in range(num_epochs):
        rows = list(range(num_rows))
        if shuffle_seed is not None:
            rows = torch.randperm(num_rows, generator=generator).tolist()
        for start in range(0, num_rows, size):
            yield batch.rows(rows[start : start + size])


def micro_batches(batch: TrainBatch, size: int) -> Iterator[TrainBatch]:
    """Yield micro-batches of ``size`` rows; the last may be smaller."""
    for start in range(0, len(batch), size):
        yield batch.rows(slice(start, start + size))


def mean_of(collected: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average each metric over the mini-batches; nothing without any."""
    names = dict.fromkeys(name for metrics in collected for name in metrics)
    return {name: sum(m[name] for m in collected) / len(collected) for name in names}


def _shuffle_seed(config: StackConfig) -> int | None:
    return config.actor.data_loader_seed if config.actor.shuffle else None
