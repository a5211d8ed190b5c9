"""DAPO (Yu et al. 2025, arXiv 2503.14476): GRPO with four changes.

Clip-higher, the token-level loss and the missing KL are settings (`presets.py`); here are the
overlong penalty and dynamic sampling.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from align.objective.advantages import group_by_uid
from align.objective.dapo import has_signal, overlong_penalty
from align.stack.algorithms import grpo
from align.stack.algorithms.policy import outcome_scores, policy_loss
from align.stack.batch import TrainBatch
from align.stack.config import StackConfig

loss = policy_loss
advantages = grpo.advantages


def penalise_overlong(batch: TrainBatch, config: StackConfig) -> TrainBatch:
    """Lower the reward of responses that reach into the buffer before the length limit.

    The penalty goes to the last token, where the score is.
    """
    buffer = config.reward_model.reward_kwargs.overlong_buffer_cfg
    lengths = batch.response_mask.sum(-1)
    rewards = batch.token_level_rewards.clone()
    penalty = overlong_penalty(
        lengths,
        max_response_length=config.data.max_response_length,
        buffer_length=buffer.len,
        penalty_factor=buffer.penalty_factor,
        bounded=config.stack.definitions == "mindspeed_rl",
        dtype=rewards.dtype,
    )
    rows = torch.arange(len(lengths), device=rewards.device)
    rewards[rows, (lengths - 1).clamp(min=0)] += penalty
    return replace(batch, token_level_rewards=rewards)


def rows_with_signal(batch: TrainBatch, config: StackConfig) -> Tensor:
    """Return the rows, int64, whose group does not agree on its score."""
    kept = has_signal(
        outcome_scores(batch).cpu(),
        group_by_uid(batch.uid),
        keep_nan=config.stack.definitions == "verl",
    )
    return kept.nonzero().squeeze(-1)
