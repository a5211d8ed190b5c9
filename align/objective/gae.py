"""Generalised advantage estimation: advantages and returns from token rewards and values."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Estimate advantages, stepping over tokens that do not count.

    A_t = δ_t + γλ A_t', δ_t = r_t + γ V_t' - V_t, t' the next counting token; nothing follows the
    last one. Positions outside the mask carry the advantage that follows them; their reward is
    lost. A NaN value is NaN from its position to the left, masked or not (it is multiplied by 0).

    Args:
        token_level_rewards: float [batch, response_len].
        values: float [batch, response_len], of the critic.
        response_mask: [batch, response_len].
        gamma, lam: discount and GAE's λ, a factor per token.

    Returns:
        Advantages, not whitened, and returns (advantages + values), both [batch, response_len].
        verl whitens the advantages over the batch afterwards (`masked.whiten`).

    Source: Schulman et al. 2015, arXiv 1506.02438; verl 0.5 and later
    `compute_gae_advantage_return`. Up to 0.4, and in MindSpeed-RL, masked positions are not
    stepped over: `mindspeed_rl.gae`.
    """
    mask = response_mask.to(values.dtype)
    next_value = torch.zeros_like(values[:, 0]) if values.shape[1] else values.new_zeros(())
    advantage = next_value
    reversed_advantages = []
    for t in reversed(range(values.shape[1])):
        delta = token_level_rewards[:, t] + gamma * next_value - values[:, t]
        stepped = delta + gamma * lam * advantage
        next_value = values[:, t] * mask[:, t] + (1 - mask[:, t]) * next_value
        advantage = stepped * mask[:, t] + (1 - mask[:, t]) * advantage
        reversed_advantages.append(advantage)
    advantages = _stack_reversed(reversed_advantages, values).detach()
    return advantages, advantages + values.detach()


def penalise_kl(
    token_level_scores: Tensor, kl: Tensor, response_mask: Tensor, coefficient: float
) -> Tensor:
    """Subtract coefficient × KL from the score of every counting token (PPO's KL in the reward).

    Args:
        token_level_scores: float [batch, response_len].
        kl: nats, [batch, response_len], from `kl.kl_estimate`.

    Source: verl 0.9.1 `apply_kl_penalty` with `use_kl_in_reward`; MindSpeed-RL the same.
    """
    return token_level_scores - coefficient * (kl * response_mask.to(kl.dtype))


def _stack_reversed(columns: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(columns[::-1], dim=1) if columns else torch.zeros_like(like)
