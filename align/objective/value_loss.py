"""The critic's clipped squared error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from align.objective.aggregate import LOCAL, GlobalBatch, LossAggregation, aggregate
from align.objective.masked import masked_mean


@dataclass(frozen=True)
class ValueLoss:
    """`critic/vf_loss`, with gradient, and `critic/vf_clipfrac`, a fraction of counting tokens."""

    loss: Tensor
    clip_fraction: Tensor


def clipped_value_loss(
    predictions: Tensor,
    values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    *,
    cliprange_value: float,
    mode: LossAggregation = LossAggregation.TOKEN_MEAN,
    batch: GlobalBatch = LOCAL,
) -> ValueLoss:
    """Compute half the greater of two squared errors: predicted, and kept near the old value.

    Args:
        predictions: float [batch, response_len], `vpreds`, with gradient.
        values: same shape, the critic's values when the batch was collected.
        returns: same shape, the targets.
        response_mask: [batch, response_len].
        cliprange_value: greatest move from the old value, in units of reward.

    Source: verl 0.9.1 `compute_value_loss`; MindSpeed-RL `_compute_value_loss` with token-mean,
    where all masked is 0 instead of NaN.
    """
    near = torch.maximum(
        torch.minimum(predictions, values + cliprange_value), values - cliprange_value
    )
    free_error, near_error = (predictions - returns) ** 2, (near - returns) ** 2
    loss = 0.5 * aggregate(torch.maximum(free_error, near_error), response_mask, mode, batch)
    clipped = (near_error > free_error).to(predictions.dtype)
    return ValueLoss(loss, masked_mean(clipped, response_mask))
