"""Weights that correct for a rollout engine whose probabilities differ from the trainer's."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from align.objective.errors import ObjectiveError
from align.objective.masked import masked_mean, masked_sum

LOG_RATIO_LIMIT = 20.0  # verl `SAFETY_BOUND`


class RatioLevel(str, Enum):
    """verl `algorithm.rollout_correction.rollout_is`."""

    TOKEN = "token"
    SEQUENCE = "sequence"


def rollout_weights(
    log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    level: RatioLevel,
    *,
    upper: float = 2.0,
    lower: float | None = None,
    normalise: bool = False,
) -> Tensor:
    """Compute truncated importance weights π_train / π_rollout (TIS).

    Args:
        log_prob: float [batch, response_len], nats, of the trainer before the update.
        rollout_log_prob: same shape, as the rollout engine reported it.
        response_mask: [batch, response_len].
        level: a weight a token, or the product over the tokens of a sequence for all of them.
        upper: weights are cut down to it (`rollout_is_threshold`).
        lower: with it, weights outside [lower, upper] become 0 instead (IcePop).
        normalise: divide by their mean, over tokens or over sequences that have tokens, unless
            that is at most 1e-8 (`rollout_is_batch_normalize`).

    Returns:
        [batch, response_len], 0 outside the mask, no gradient. verl refuses a batch without any
        counting token; here it is all 0. At token level a NaN outside the mask stays NaN.

    Raises:
        ObjectiveError: bounds that are not 0 < lower <= upper.

    Source: verl 0.9.1 `compute_rollout_correction_weights`.
    """
    _check_bounds(lower, upper)
    log_ratio = (log_prob - rollout_log_prob).detach()
    if level is RatioLevel.SEQUENCE:
        log_ratio = masked_sum(log_ratio, response_mask, -1)[:, None].expand_as(log_ratio)
    raw = torch.exp(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    weights = _bound(raw * response_mask.to(raw.dtype), lower, upper)
    if not normalise:
        return weights
    mean = _mean_weight(weights, response_mask, level)
    return torch.where(mean > 1e-8, weights / mean, weights)


def effective_sample_fraction(weights: Tensor, response_mask: Tensor) -> Tensor:
    """Compute mean(w)² / mean(w²) over counting tokens: 1 when all weigh alike, 1/n when one rules.

    Source: verl 0.9.1 `rollout_is_eff_sample_size`.
    """
    relative = weights / (masked_mean(weights, response_mask) + 1e-8)
    return 1.0 / masked_mean(relative**2, response_mask)


def _bound(weights: Tensor, lower: float | None, upper: float) -> Tensor:
    if lower is None:
        return weights.clamp(max=upper)
    return torch.where((weights >= lower) & (weights <= upper), weights, 0.0)


def _mean_weight(weights: Tensor, response_mask: Tensor, level: RatioLevel) -> Tensor:
    if level is RatioLevel.TOKEN:
        return masked_mean(weights, response_mask)
    return masked_mean(masked_mean(weights, response_mask, -1), response_mask.sum(-1) > 0)


def _check_bounds(lower: float | None, upper: float) -> None:
    if not upper > 0 or (lower is not None and not 0 < lower <= upper):
        raise ObjectiveError(
            where="rollout_weights",
            key="rollout_is_threshold",
            problem=f"bounds {lower} and {upper} are not 0 < lower <= upper",
            fix="use one positive number to truncate, or lower_upper to drop",
        )
