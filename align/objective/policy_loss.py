"""Policy-gradient losses on token log-probabilities: PPO's clipped surrogate and GSPO.

Both give a `TokenPolicyLoss`; `reduce_policy_loss` turns that into the loss and its metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from align.objective.aggregate import LOCAL, GlobalBatch, LossAggregation, aggregate
from align.objective.errors import ObjectiveError
from align.objective.masked import masked_mean

LOG_RATIO_LIMIT = 20.0  # verl since 0.5 clamps the log ratio to ±20; MindSpeed-RL and TRL do not
SEQUENCE_LOG_RATIO_LIMIT = 10.0  # verl's GSPO, upper side alone


@dataclass(frozen=True)
class Clip:
    """Where the probability ratio is cut.

    Args:
        low, high: the ratio counts within [1 - low, 1 + high]; high > low is DAPO's clip-higher.
        dual: greatest weight of a token with negative advantage (verl `clip_ratio_c`, 3 by
            default; TRL `delta`); None, as in MindSpeed-RL, leaves it unbounded.
        log_ratio_limit: clamp of the log ratio itself; None leaves it alone.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = 3.0
    log_ratio_limit: float | None = LOG_RATIO_LIMIT

    def __post_init__(self) -> None:
        if self.dual is not None and not self.dual > 1:
            raise ObjectiveError(
                where="Clip",
                key="clip_ratio_c",
                problem=f"is {self.dual}, not above 1",
                fix="use verl's default 3.0, or None for no dual clip",
            )


@dataclass(frozen=True)
class TokenPolicyLoss:
    """Loss of every token before masking; all [batch, response_len].

    Args:
        losses: float, with gradient.
        clipped: bool, the clipped ratio gave the loss.
        dual_clipped: bool, the dual clip bounded it.
        negative_log_ratio: log π_old - log π; its masked mean is `actor/ppo_kl`.
    """

    losses: Tensor
    clipped: Tensor
    dual_clipped: Tensor
    negative_log_ratio: Tensor


@dataclass(frozen=True)
class PolicyLoss:
    """One loss with the metrics verl logs beside it, all scalars.

    Args:
        loss: `actor/pg_loss`, signed, with gradient.
        clip_fraction, dual_clip_fraction: `actor/pg_clipfrac` and `actor/pg_clipfrac_lower`,
            fractions of counting tokens.
        approx_kl: `actor/ppo_kl`, k1 of old to new policy in nats.
    """

    loss: Tensor
    clip_fraction: Tensor
    dual_clip_fraction: Tensor
    approx_kl: Tensor


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: Clip
) -> TokenPolicyLoss:
    """Compute max(-A r, -A clip(r)) per token, bounded by -A c where A < 0 with a dual clip.

    Args:
        log_prob: float [batch, response_len], nats, with gradient.
        old_log_prob, advantages: same shape.

    Source: Schulman et al. 2017, arXiv 1707.06347; dual clip Ye et al. 2019, arXiv 1912.09729;
    verl 0.9.1 `compute_policy_loss_vanilla`. Infinite advantages or log-probabilities give NaN
    wherever the arithmetic does.
    """
    log_ratio = log_prob - old_log_prob
    if clip.log_ratio_limit is not None:
        log_ratio = log_ratio.clamp(-clip.log_ratio_limit, clip.log_ratio_limit)
    losses, clipped = _clip(torch.exp(log_ratio), advantages, clip)
    if clip.dual is None:
        return TokenPolicyLoss(losses, clipped, torch.zeros_like(clipped), -log_ratio)
    bound = -advantages * clip.dual
    negative = advantages < 0
    bounded = torch.where(negative, torch.minimum(bound, losses), losses)
    return TokenPolicyLoss(bounded, clipped, (losses > bound) & negative, -log_ratio)


def gspo(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip: Clip,
) -> TokenPolicyLoss:
    """Compute the clipped surrogate with one ratio a sequence: exp of its mean log ratio.

    Every token carries the sequence's ratio by value and its own log-probability by gradient. No
    dual clip; the log ratio is clamped at 10 from above. A sequence without token has ratio 1.

    Args:
        log_prob: float [batch, response_len], nats, with gradient.
        old_log_prob, advantages, response_mask: same shape.

    Source: Zheng et al. 2025, arXiv 2507.18071; verl 0.9.1 `compute_policy_loss_gspo`. verl
    aggregates with seq-mean-token-mean by default.
    """
    log_ratio = log_prob - old_log_prob
    lengths = response_mask.sum(-1).clamp(min=1)
    sequence = ((log_ratio * response_mask).sum(-1) / lengths).detach()[:, None]
    own = log_prob - log_prob.detach() + sequence
    ratio = torch.exp(own.clamp(max=SEQUENCE_LOG_RATIO_LIMIT))
    losses, clipped = _clip(ratio, advantages, clip)
    return TokenPolicyLoss(losses, clipped, torch.zeros_like(clipped), -log_ratio)


def reduce_policy_loss(
    tokens: TokenPolicyLoss,
    response_mask: Tensor,
    mode: LossAggregation,
    batch: GlobalBatch = LOCAL,
    weights: Tensor | None = None,
) -> PolicyLoss:
    """Aggregate token losses and average the metrics over counting tokens.

    Args:
        response_mask: [batch, response_len].
        weights: [batch, response_len], from `importance_sampling.rollout_weights`.
    """
    losses = tokens.losses if weights is None else tokens.losses * weights
    dtype = losses.dtype
    return PolicyLoss(
        loss=aggregate(losses, response_mask, mode, batch),
        clip_fraction=masked_mean(tokens.clipped.to(dtype), response_mask),
        dual_clip_fraction=masked_mean(tokens.dual_clipped.to(dtype), response_mask),
        approx_kl=masked_mean(tokens.negative_log_ratio.detach(), response_mask),
    )


def _clip(ratio: Tensor, advantages: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    free = -advantages * ratio
    cut = -advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    return torch.maximum(free, cut), cut > free
