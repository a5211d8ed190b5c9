"""Sums, means and whitening over the tokens that count."""

from __future__ import annotations

import torch
from torch import Tensor

from align.objective.errors import ObjectiveError

_VARIANCE_EPSILON = 1e-8  # verl and MindSpeed-RL alike


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum the values under the mask; what lies outside it, NaN included, is dropped.

    Args:
        values: any shape.
        mask: broadcastable to values.
        dim: dimension to sum over; all of them when None.

    Source: verl `masked_sum`.
    """
    kept = torch.where(mask.bool(), values, 0.0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Average the values under the mask; an empty mask gives 0.

    Source: verl and MindSpeed-RL `masked_mean`. They divide by count + 1e-8, which float32 rounds
    to the count; here the count is exact in float64 too.
    """
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(values, mask, dim) / count.to(values.dtype).clamp(min=1)


def masked_variance(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the unbiased variance of the values under the mask.

    Raises:
        ObjectiveError: fewer than two values count, where verl raises ValueError too.

    Source: verl `masked_var`.
    """
    count = int(mask.sum())
    if count < 2:
        raise ObjectiveError(
            where="masked_variance",
            key="response_mask",
            problem=f"has {count} counting token{'' if count == 1 else 's'}, so no variance",
            fix="use a larger batch, or drop the rows without response",
        )
    mean = masked_mean(values, mask)
    return masked_mean((values - mean) ** 2, mask) * (count / (count - 1))


def whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Scale to zero mean (kept when not shift_mean) and unit variance over the mask.

    Values outside the mask are moved by the same statistics, not zeroed.

    Raises:
        ObjectiveError: fewer than two values count.

    Source: verl `masked_whiten`.
    """
    return scale_to_unit(
        values, masked_mean(values, mask), masked_variance(values, mask), shift_mean
    )


def scale_to_unit(
    values: Tensor, mean: Tensor, variance: Tensor, shift_mean: bool = True
) -> Tensor:
    """Subtract the mean and divide by sqrt(variance + 1e-8)."""
    scaled = (values - mean) * torch.rsqrt(variance + _VARIANCE_EPSILON)
    return scaled if shift_mean else scaled + mean
