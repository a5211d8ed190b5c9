"""DAPO (Yu et al. 2025, arXiv 2503.14476): GRPO with four changes.

Clip-higher, the token-level loss and the missing KL are settings (`presets.py`); here is the
overlong penalty. Dynamic sampling draws prompts, so it is in `collect.py`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from align.objective.dapo import overlong_penalty
from align.stack.algorithms import grpo
from align.stack.algorithms.policy import policy_loss
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
