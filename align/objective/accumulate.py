"""The loss of a mini-batch whose gradient is accumulated over micro-batches.

verl 0.8 and later: the split does not matter. verl up to 0.7 and MindSpeed-RL: every micro-batch
is normalised on its own, so tokens of a micro-batch with few tokens weigh more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from align.objective.aggregate import GlobalBatch, LossAggregation, aggregate
from align.objective.errors import ObjectiveError


def normalised_globally(
    loss_mat: Tensor,
    loss_mask: Tensor,
    mode: LossAggregation,
    sizes: Sequence[int],
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Sum the micro-batch losses, each divided by the counts of the whole mini-batch.

    Args:
        loss_mat: float [batch, response_len], the mini-batch.
        loss_mask: [batch, response_len].
        sizes: rows of each micro-batch, in order; they add up to batch.

    Source: verl 0.8 and later, `forward_backward_batch` of its engines and `ppo_loss`: tokens are
    counted, while num_sequences is the configured size, empty rows included.
    """
    batch = GlobalBatch(
        num_tokens=int(loss_mask.sum()),
        num_sequences=loss_mat.shape[0],
        loss_scale_factor=loss_scale_factor,
    )
    parts = _split(loss_mat, loss_mask, sizes)
    return torch.stack([aggregate(losses, mask, mode, batch) for losses, mask in parts]).sum()


def normalised_by_micro_batch(
    loss_mat: Tensor,
    loss_mask: Tensor,
    sizes: Sequence[int],
    reduce: Callable[[Tensor, Tensor], Tensor],
    *,
    dynamic: bool = False,
) -> Tensor:
    """Average the losses of micro-batches that were each normalised on their own.

    Args:
        loss_mat: float [batch, response_len], the mini-batch of one rank.
        loss_mask: [batch, response_len].
        sizes: rows of each micro-batch, in order; they add up to batch.
        reduce: a micro-batch's loss from its matrix and mask: `masked_mean` for MindSpeed-RL, an
            aggregation for verl.
        dynamic: micro-batches were packed by token count (`use_dynamic_bsz`) and weigh by rows.

    Source: verl 0.3 to 0.7 `dp_actor.update_policy`; MindSpeed-RL `compute_loss`, whose Megatron
    schedule divides by the number of micro-batches. Both use the same two weightings.
    """
    losses = torch.stack([reduce(*part) for part in _split(loss_mat, loss_mask, sizes)])
    if not dynamic:
        return losses.mean()
    rows = torch.tensor(list(sizes), dtype=losses.dtype, device=losses.device)
    return (losses * rows).sum() / loss_mat.shape[0]


def _split(
    loss_mat: Tensor, loss_mask: Tensor, sizes: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    if sum(sizes) != loss_mat.shape[0] or min(sizes, default=0) < 1:
        raise ObjectiveError(
            where="micro-batches",
            key="sizes",
            problem=f"{list(sizes)} do not split {loss_mat.shape[0]} rows",
            fix="give positive sizes that add up to the rows of the mini-batch",
        )
    return list(
        zip(torch.split(loss_mat, list(sizes)), torch.split(loss_mask, list(sizes)), strict=True)
    )
