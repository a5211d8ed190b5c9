"""MindSpeed-RL's own definitions, where they differ from verl's.

Against verl: no dual clip, no clamp of the log ratio, every micro-batch normalised on its own
(`accumulate.normalised_by_micro_batch` with `masked_mean`), KL always in the GRPO loss. The KL
estimators are the same functions. Read from its master of 2026-04.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from align.objective.advantages import spread_over_tokens
from align.objective.errors import ObjectiveError
from align.objective.kl import kl_estimate
from align.objective.masked import masked_mean, scale_to_unit
from align.objective.policy_loss import Clip, TokenPolicyLoss, clipped_surrogate

_STD_EPSILON = 1e-6


@dataclass(frozen=True)
class ActorLoss:
    """The loss of one micro-batch with the metrics logged for it, all scalars.

    Args:
        loss: what is differentiated: surrogate + c · kl - e · entropy.
        surrogate: mean clipped surrogate, which is not logged.
        clip_fraction: `actor/pg_clipfrac`.
        approx_kl: `actor/ppo_kl`.
        kl_loss: `actor/kl_loss`, without the coefficient; 0 for DAPO and PPO.
        entropy: `actor/entropy`, 0 when the coefficient is 0.
    """

    loss: Tensor
    surrogate: Tensor
    clip_fraction: Tensor
    approx_kl: Tensor
    kl_loss: Tensor
    entropy: Tensor

    @property
    def logged_pg_loss(self) -> float:
        """Give `actor/pg_loss`: the *absolute* value of the whole loss, where verl logs the signed
        surrogate alone."""
        return abs(float(self.loss.detach()))


def clip(low: float = 0.2, high: float | None = None) -> Clip:
    """Make the clip of its GRPO, PPO and DAPO: no dual clip, log ratio as it is."""
    return Clip(low=low, high=low if high is None else high, dual=None, log_ratio_limit=None)


def group_norm_advantages(scores: Tensor, response_mask: Tensor, num_samples: int) -> Tensor:
    """Give every token (score - group mean) / (group std + 1e-6), groups being adjacent rows.

    Computed in float64 and rounded to float32, whatever comes in. Groups are num_samples rows in
    a row, so any reordering mixes prompts. A group of one is NaN (std of one value), where verl
    keeps the score; of a response without token the whole row is 0.

    Args:
        scores: float [batch], `rm_scores`.
        response_mask: [batch, response_len].
        num_samples: `n_samples_per_prompt`.

    Returns:
        float32 [batch, response_len], 0 outside the mask (NaN in a NaN row).

    Raises:
        ObjectiveError: batch is not a multiple of num_samples.

    Source: MindSpeed-RL `compute_group_norm_advantage_return`.
    """
    if num_samples < 1 or scores.shape[0] % num_samples:
        raise ObjectiveError(
            where="group_norm_advantages",
            key="n_samples_per_prompt",
            problem=f"{num_samples} does not divide {scores.shape[0]} responses",
            fix="give the batch whole groups",
        )
    grouped = scores.detach().double().reshape(-1, num_samples)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    normed = centred / (grouped.std(dim=1, keepdim=True) + _STD_EPSILON)
    return spread_over_tokens(normed.reshape(-1).float(), response_mask)


def gae(
    token_level_rewards: Tensor, values: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Estimate advantages without looking at the mask: values after the response's end count.

    Where padding carries non-zero values, as a critic gives, the last token's advantage and all
    before it differ from verl's.

    Args:
        token_level_rewards, values: float [batch, response_len].
        gamma, lam: discount and GAE's λ; 1.0 and 0.95 by default.

    Returns:
        Advantages, not whitened, and returns, both [batch, response_len], no gradient. It whitens
        afterwards with `whiten` below.

    Source: MindSpeed-RL `compute_gae_advantage_return`; verl up to 0.4 the same.
    """
    advantages = torch.zeros_like(values)
    advantage = values.new_zeros(values.shape[0])
    next_value = values.new_zeros(values.shape[0])
    for t in reversed(range(values.shape[1])):
        delta = token_level_rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * advantage
        advantages[:, t] = advantage.detach()
        next_value = values[:, t]
    return advantages, advantages + values.detach()


def whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Scale to zero mean and unit variance over the mask.

    As `masked.whiten`, but a single counting value has variance 0 and becomes 0.

    Raises:
        ObjectiveError: nothing counts.

    Source: MindSpeed-RL `masked_whiten`.
    """
    count = int(mask.sum())
    if count == 0:
        raise ObjectiveError(
            where="whiten",
            key="response_mask",
            problem="has no counting token",
            fix="drop batches without any response",
        )
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask) * (count / max(count - 1, 1))
    return scale_to_unit(values, mean, variance, shift_mean)


def grpo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor | None,
    ref_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float = 0.2,
    kl_penalty: str = "low_var_kl",
    kl_coefficient: float = 0.01,
    entropy: Tensor | None = None,
    entropy_coefficient: float = 0.0,
) -> ActorLoss:
    """Compute the GRPO loss of one micro-batch.

    Args:
        log_prob: float [batch, response_len], nats, with gradient.
        old_log_prob: same shape; None, on the first update of a batch, is log_prob itself.
        ref_log_prob, advantages, entropy: same shape; no entropy counts as 0.
        response_mask: [batch, response_len]; all masked gives a loss of 0.

    Source: MindSpeed-RL `GRPOActorLossFunc._compute_grpo_policy_loss`.
    """
    tokens = _surrogate(log_prob, old_log_prob, advantages, clip(clip_ratio))
    surrogate = masked_mean(tokens.losses, response_mask)
    kl_loss = masked_mean(kl_estimate(log_prob, ref_log_prob, kl_penalty), response_mask)
    mean_entropy = _mean_entropy(entropy, response_mask, surrogate)
    loss = surrogate + kl_loss * kl_coefficient - entropy_coefficient * mean_entropy
    return _actor_loss(loss, surrogate, tokens, response_mask, kl_loss, mean_entropy)


def dapo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor | None,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    token_level_loss: bool = True,
    entropy: Tensor | None = None,
    entropy_coefficient: float = 0.0,
) -> ActorLoss:
    """Compute the DAPO loss of one micro-batch; with equal clips and token_level_loss, PPO's.

    Args:
        log_prob: float [batch, response_len], nats, with gradient.
        old_log_prob, advantages, response_mask, entropy: as for `grpo_loss`.
        token_level_loss: mean over tokens; otherwise the mean over rows of their token means,
            NaN as soon as one row is empty. `actor/pg_clipfrac` is then 0 whatever is clipped,
            because the losses are overwritten before they are compared.

    Source: MindSpeed-RL `DAPOActorLossFunc._compute_dapo_policy_loss`, and
    `PPOActorLossFunc._compute_ppo_policy_loss`.
    """
    bounds = clip(clip_ratio_low, clip_ratio_high)
    tokens = _surrogate(log_prob, old_log_prob, advantages, bounds)
    if token_level_loss:
        surrogate = masked_mean(tokens.losses, response_mask)
    else:
        sums = (tokens.losses * response_mask.to(log_prob.dtype)).sum(-1)
        surrogate = (sums / response_mask.sum(-1)).mean()
        tokens = replace(tokens, clipped=torch.zeros_like(tokens.clipped))
    mean_entropy = _mean_entropy(entropy, response_mask, surrogate)
    loss = surrogate - entropy_coefficient * mean_entropy
    return _actor_loss(
        loss, surrogate, tokens, response_mask, torch.zeros_like(surrogate), mean_entropy
    )


def _surrogate(
    log_prob: Tensor, old_log_prob: Tensor | None, advantages: Tensor, bounds: Clip
) -> TokenPolicyLoss:
    old = log_prob.detach() if old_log_prob is None else old_log_prob
    return clipped_surrogate(log_prob, old, advantages, bounds)


def _mean_entropy(entropy: Tensor | None, response_mask: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if entropy is None else masked_mean(entropy, response_mask)


def _actor_loss(
    loss: Tensor,
    surrogate: Tensor,
    tokens: TokenPolicyLoss,
    response_mask: Tensor,
    kl_loss: Tensor,
    entropy: Tensor,
) -> ActorLoss:
    return ActorLoss(
        loss=loss,
        surrogate=surrogate.detach(),
        clip_fraction=masked_mean(tokens.clipped.to(loss.dtype), response_mask),
        approx_kl=masked_mean(tokens.negative_log_ratio.detach(), response_mask),
        kl_loss=kl_loss.detach(),
        entropy=entropy.detach(),
    )
