"""Log-probabilities of a whole batch without gradient: before the update, of the reference."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from align.stack import sharding
from align.stack.actor import micro_batches
from align.stack.batch import TrainBatch
from align.stack.config import StackConfig
from align.stack.pipeline import Model, Pipeline


def with_old_log_probs(
    model: Model, batch: TrainBatch, config: StackConfig, pipeline: Pipeline
) -> tuple[TrainBatch, Tensor]:
    """Add old_log_probs, and bring the rewards to their dtype; return the entropy [b, r] too."""
    log_probs, entropy = frozen_log_probs(model, batch, config, pipeline)
    if config.algorithm.rollout_correction.bypass_mode:
        log_probs = batch.rollout_log_probs
    rewards = batch.token_level_rewards.to(log_probs.dtype)
    return replace(batch, old_log_probs=log_probs, token_level_rewards=rewards), entropy


@torch.no_grad()
def frozen_log_probs(
    model: Model, batch: TrainBatch, config: StackConfig, pipeline: Pipeline
) -> tuple[Tensor, Tensor]:
    """Compute log_probs and entropy [b, r] in micro-batches, in evaluation mode."""
    model.train(False)
    size = config.rollout.log_prob_micro_batch_size_per_gpu
    own = micro_batches(sharding.own_rows(batch), size)
    log_probs, entropy = zip(
        *(pipeline.log_probs(model, micro, config) for micro in own), strict=True
    )
    return sharding.gather_rows(torch.cat(log_probs)), sharding.gather_rows(torch.cat(entropy))
