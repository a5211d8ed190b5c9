"""From a matrix of token losses to one number: every `loss_agg_mode` of verl."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from align.objective.errors import ObjectiveError
from align.objective.masked import masked_mean, masked_sum


class LossAggregation(str, Enum):
    """verl's `actor.loss_agg_mode`; token-sum exists since 0.9."""

    TOKEN_MEAN = "token-mean"
    TOKEN_SUM = "token-sum"
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"


@dataclass(frozen=True)
class GlobalBatch:
    """What a micro-batch has to know of its mini-batch over all ranks to be one part of its loss.

    Args:
        dp_size: data-parallel ranks, whose gradients are averaged afterwards.
        num_tokens: counting tokens; None counts those of the matrix at hand.
        num_sequences: rows, empty ones included; None counts the rows at hand with a token.
        loss_scale_factor: divisor of seq-mean-token-sum-norm; None takes the padded length.
    """

    dp_size: int = 1
    num_tokens: int | None = None
    num_sequences: int | None = None
    loss_scale_factor: float | None = None


LOCAL = GlobalBatch()


def aggregate(
    loss_mat: Tensor, loss_mask: Tensor, mode: LossAggregation, batch: GlobalBatch = LOCAL
) -> Tensor:
    """Reduce token losses to a scalar as verl 0.8 and later do.

    With nothing to count (all masked, no GlobalBatch) the mean modes are 0/0 = NaN, as in verl;
    token-sum is 0. A NaN outside the mask is dropped by the token modes and by rows without any
    token; in a row with tokens it poisons the sequence modes, as in verl.

    Args:
        loss_mat: float [batch, response_len].
        loss_mask: [batch, response_len].

    Returns:
        Scalar in the dtype of loss_mat.

    Raises:
        ObjectiveError: dp_size > 1 without the count the mode divides by.

    Source: verl 0.9.1 `agg_loss`.
    """
    if mode is LossAggregation.TOKEN_SUM:
        return masked_sum(loss_mat, loss_mask) * batch.dp_size
    if mode is LossAggregation.TOKEN_MEAN:
        num_tokens = _known(batch.num_tokens, loss_mask.sum(), batch, "num_tokens")
        return masked_sum(loss_mat, loss_mask) / num_tokens * batch.dp_size
    loss = _sequence_mean(loss_mat, loss_mask, mode, batch)
    if mode is LossAggregation.SEQ_MEAN_TOKEN_SUM_NORM:
        return loss / (batch.loss_scale_factor or loss_mask.shape[-1])
    return loss


def aggregate_verl_0_4(loss_mat: Tensor, loss_mask: Tensor, mode: LossAggregation) -> Tensor:
    """Reduce token losses to a scalar as verl 0.4 to 0.6 did.

    It differs from `aggregate` on empty rows, which count as rows and make seq-mean-token-mean
    NaN (0/0); in token-mean of nothing, which is 0; and in seq-mean-token-sum-norm, a plain sum
    over the batch divided by the padded length.

    Raises:
        ObjectiveError: token-sum, which these versions do not have.

    Source: verl v0.4.0, v0.5.0 and v0.6.0 `agg_loss`; 0.7 has this seq-mean-token-sum-norm and
    the other modes of `aggregate`. Up to 0.3 token-mean was the only mode.
    """
    if mode is LossAggregation.TOKEN_MEAN:
        return masked_mean(loss_mat, loss_mask)
    token_sums = (loss_mat * loss_mask).sum(-1)
    if mode is LossAggregation.SEQ_MEAN_TOKEN_SUM:
        return token_sums.mean()
    if mode is LossAggregation.SEQ_MEAN_TOKEN_MEAN:
        return (token_sums / loss_mask.sum(-1)).mean()
    if mode is LossAggregation.SEQ_MEAN_TOKEN_SUM_NORM:
        return token_sums.sum() / loss_mask.shape[-1]
    raise ObjectiveError(
        where="aggregate_verl_0_4",
        key="loss_agg_mode",
        problem=f"{mode.value} does not exist before verl 0.9",
        fix="use token-mean, or aggregate() for verl 0.9",
    )


def _sequence_mean(
    loss_mat: Tensor, loss_mask: Tensor, mode: LossAggregation, batch: GlobalBatch
) -> Tensor:
    token_counts = loss_mask.sum(-1)
    sequence_losses = (loss_mat * loss_mask).sum(-1)
    if mode is LossAggregation.SEQ_MEAN_TOKEN_MEAN:
        sequence_losses = sequence_losses / token_counts.clamp(min=1)
    present = token_counts > 0
    num_sequences = _known(batch.num_sequences, present.sum(), batch, "num_sequences")
    return masked_sum(sequence_losses, present) / num_sequences * batch.dp_size


def _known(count: int | None, local: Tensor, batch: GlobalBatch, key: str) -> int | Tensor:
    if count is not None:
        return count
    if batch.dp_size > 1:
        raise ObjectiveError(
            where="GlobalBatch",
            key=key,
            problem=f"is unknown with {batch.dp_size} data-parallel ranks",
            fix="give its sum over all ranks",
        )
    return local
