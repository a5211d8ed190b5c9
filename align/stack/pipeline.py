"""Every stage of a training step as one replaceable function, the real ones as defaults.

A fault is a function from `Pipeline` to `Pipeline` (`dataclasses.replace` with one stage wrapped)
or a list of configuration overrides. `train.py` calls stages only through here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from align.objective.aggregate import GlobalBatch
from align.stack import (
    actor,
    algorithms,
    batch,
    checkpoint,
    dataset,
    length_filter,
    log_probs,
    metrics,
    models,
    numerics,
    optimizer,
    order,
    prompts,
    rewards,
    rollout,
    tokenizer,
    weight_sync,
)
from align.stack.batch import TrainBatch
from align.stack.config import StackConfig
from align.stack.dataset import Row
from align.stack.loss import ActorLoss
from align.stack.prompts import RenderedPrompt
from align.stack.rewards import Scores
from align.stack.rollout import Response

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    Model = PreTrainedModel
    Tokenizer = PreTrainedTokenizerFast
else:
    Model = Tokenizer = Any


@dataclass(frozen=True)
class Pipeline:
    """The stages, in the order in which a run meets them."""

    # once
    load_tokenizer: Callable[[StackConfig], Tokenizer] = tokenizer.load_tokenizer
    load_rows: Callable[[StackConfig], list[Row]] = dataset.load_rows
    render: Callable[[Row, Tokenizer, StackConfig], RenderedPrompt] = prompts.render
    # indices of the rows that stay, from their prompts; row_order counts what stays
    keep_rows: Callable[[Sequence[RenderedPrompt], StackConfig], list[int]] = (
        length_filter.keep_rows
    )
    row_order: Callable[[StackConfig, int], Iterator[list[int]]] = order.row_order
    # the order from step num_done on, for a resumed run
    resume_order: Callable[[Iterator[list[int]], int], Iterator[list[int]]] = (
        checkpoint.resume_order
    )
    build_model: Callable[[StackConfig, Tokenizer], Model] = models.build_model
    build_rollout_model: Callable[[StackConfig, Tokenizer], Model] = models.build_model
    build_reference_model: Callable[[StackConfig, Tokenizer], Model] = models.build_model
    apply_numerics: Callable[[str, nn.Module], None] = numerics.apply
    build_optimizer: Callable[[nn.Module, StackConfig], torch.optim.Optimizer] = (
        optimizer.build_optimizer
    )

    # every step; prompts come repeated rollout.n times, interleaved (a a b b)
    sync_weights: Callable[[Model, Model], None] = weight_sync.sync_weights  # trainer, rollout
    generate: Callable[
        [Model, Tokenizer, Sequence[RenderedPrompt], StackConfig, int], list[Response]
    ] = rollout.generate
    score: Callable[..., Scores] = rewards.score  # row, response text; names=rules where chosen
    # metric name -> value, from the scores of the whole batch and their rows
    summarise_scores: Callable[[Sequence[Scores], Sequence[Row]], dict[str, float]] = (
        metrics.summarise_scores
    )
    assemble: Callable[
        [Sequence[Response], Sequence[Scores], Tokenizer, StackConfig], TrainBatch
    ] = batch.assemble
    # log_probs and entropy [b, r] of a batch, for old, reference and the update
    log_probs: Callable[[Model, TrainBatch, StackConfig], tuple[Tensor, Tensor]] = (
        log_probs.log_probs
    )
    # the batch with advantages and returns (and KL in the reward, groups dropped …)
    advantages: Callable[[TrainBatch, StackConfig], TrainBatch] = algorithms.advantages

    # every micro-batch
    loss: Callable[[TrainBatch, Tensor, Tensor, StackConfig, GlobalBatch], ActorLoss] = (
        algorithms.loss
    )
    # the loss is already scaled to its share of the mini-batch
    backward: Callable[[Tensor, nn.Module], None] = actor.backward

    # every mini-batch
    reduce_gradients: Callable[[nn.Module], None] = actor.reduce_gradients  # nothing on one process
    clip_gradients: Callable[[nn.Module, float], float] = actor.clip_gradients  # norm before it
    # learning rate during the update: training step from 0, update within it from 0
    learning_rate: Callable[[StackConfig, int, int], float] = optimizer.learning_rate
    optimizer_step: Callable[[torch.optim.Optimizer, float], None] = optimizer.optimizer_step
