"""The policy loss that grpo, ppo and dapo share: clipped surrogate + c · KL - e · entropy."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from align.objective.aggregate import GlobalBatch, LossAggregation, aggregate
from align.objective.importance_sampling import RatioLevel, rollout_weights
from align.objective.kl import kl_estimate
from align.objective.mindspeed_rl import clip as mindspeed_rl_clip
from align.objective.policy_loss import (
    Clip,
    TokenPolicyLoss,
    clipped_surrogate,
    gspo,
    reduce_policy_loss,
)
from align.stack.batch import TrainBatch, given
from align.stack.config import StackConfig
from align.stack.loss import ActorLoss


def policy_loss(
    batch: TrainBatch,
    log_probs: Tensor,
    entropy: Tensor,
    config: StackConfig,
    totals: GlobalBatch,
) -> ActorLoss:
    """Compute the loss of a micro-batch, its share of the mini-batch.

    verl since 0.8 divides by the counts of the mini-batch. MindSpeed-RL divides every micro-batch
    by its own and averages: `micro-batch` rows of `num_sequences`.
    """
    actor, mask = config.actor, batch.response_mask
    mode = LossAggregation(actor.loss_agg_mode)
    share = 1.0
    if config.stack.definitions == "mindspeed_rl":
        share = log_probs.shape[0] / (totals.num_sequences or log_probs.shape[0])
        totals = GlobalBatch(loss_scale_factor=totals.loss_scale_factor)
    tokens = token_losses(batch, log_probs, config)
    policy = reduce_policy_loss(tokens, mask, mode, totals, _weights(batch, config))
    total = policy.loss
    summed = {"actor/pg_loss": share * float(policy.loss.detach())}
    if actor.use_kl_loss:
        kl = kl_estimate(log_probs, given(batch.ref_log_prob), actor.kl_loss_type)
        kl_loss = aggregate(kl, mask, mode, totals)
        total = total + actor.kl_loss_coef * kl_loss
        summed["actor/kl_loss"] = share * float(kl_loss.detach())
    if actor.entropy_coeff:
        total = total - actor.entropy_coeff * aggregate(entropy, mask, mode, totals)
    total = total * share
    return ActorLoss(
        total=total,
        summed={**summed, "actor/loss": float(total.detach())},
        averaged={
            "actor/pg_clipfrac": float(policy.clip_fraction),
            "actor/pg_clipfrac_lower": float(policy.dual_clip_fraction),
            "actor/ppo_kl": float(policy.approx_kl),
        },
    )


def token_losses(batch: TrainBatch, log_probs: Tensor, config: StackConfig) -> TokenPolicyLoss:
    """Compute the clipped surrogate of every token, [b, r]."""
    actor = config.actor
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
    if config.stack.definitions == "mindspeed_rl":
        limits = mindspeed_rl_clip(low, high)
    else:
        limits = Clip(low, high, actor.clip_ratio_c)
    old, advantages = given(batch.old_log_probs), given(batch.advantages)
    if actor.policy_loss.loss_mode == "gspo":
        return gspo(log_probs, old, advantages, batch.response_mask, limits)
    return clipped_surrogate(log_probs, old, advantages, limits)


def _weights(batch: TrainBatch, config: StackConfig) -> Tensor | None:
    correction = config.algorithm.rollout_correction
    if correction.rollout_is is None:
        return None
    return rollout_weights(
        given(batch.old_log_probs),
        batch.rollout_log_probs,
        batch.response_mask,
        RatioLevel(correction.rollout_is),
        upper=correction.rollout_is_threshold,
    )


def with_advantages(
    batch: TrainBatch, advantages: Tensor, returns: Tensor | None = None
) -> TrainBatch:
    """Return the batch with advantages and returns; without a critic they are the same."""
    dtype = batch.token_level_rewards.dtype
    returns = advantages if returns is None else returns
    return replace(batch, advantages=advantages.to(dtype), returns=returns.to(dtype))


def outcome_scores(batch: TrainBatch) -> Tensor:
    """Sum the rewards of every response: [b, r] to [b]."""
    return torch.sum(batch.token_level_rewards, dim=-1)
