"""Log-probabilities and entropy of the responses under a model, padded or packed.

Packed (verl's use_remove_padding) lays all rows end to end without padding; positions restart
with every row, and attention is told where rows begin. Both give the same values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from align.objective.entropy import entropy_from_logits
from align.objective.log_probs import log_probs_from_logits
from align.stack import attention
from align.stack.batch import TrainBatch
from align.stack.numerics import compute_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from align.stack.config import StackConfig


def log_probs(
    model: PreTrainedModel, batch: TrainBatch, config: StackConfig
) -> tuple[Tensor, Tensor]:
    """Compute log_probs of the response tokens and the entropy where each was chosen.

    Logits are divided by ``rollout.temperature``, as both frameworks do. They are widened to
    float32 first when the model computes in less.

    Returns:
        Two float [b, r], float64 from a float64 model and float32 otherwise; 0 at padding.
    """
    forward = packed_logits if config.model.use_remove_padding else padded_logits
    return score_tokens(forward(model, batch), batch, config.rollout.temperature)


def padded_logits(model: PreTrainedModel, batch: TrainBatch) -> Tensor:
    """Return the logits [tokens, vocab] that chose each attended response token, row after row."""
    out = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
        logits_to_keep=batch.responses.shape[1] + 1,
    )
    logits: Tensor = out.logits[:, :-1]
    return logits[response_positions(batch)]


def packed_logits(model: PreTrainedModel, batch: TrainBatch) -> Tensor:
    """Return the same from one packed sequence of all rows."""
    attended = batch.attention_mask.bool()
    out = model(
        input_ids=batch.input_ids[attended][None],
        position_ids=batch.position_ids[attended][None],
        use_cache=False,
        logits_to_keep=_choosing_positions(batch),
        **rows_apart(model, batch.attention_mask),
    )
    logits: Tensor = out.logits[0]
    return logits


def rows_apart(model: PreTrainedModel, attention_mask: Tensor) -> dict[str, Any]:
    """Return the arguments that keep packed rows from attending to each other.

    Row bounds where the model's attention takes them, else a block-diagonal mask, whose size is
    the square of the number of tokens.
    """
    kind = model.config._attn_implementation
    if kind == attention.NAME:
        # A mask of four dimensions is passed on as it is; none would be built, tokens squared.
        unused = torch.zeros(1, 1, 1, 1, device=attention_mask.device)
        return {"attention_mask": unused, **attention.packing(attention_mask.sum(-1))}
    if kind.startswith("flash"):
        return attention.packing(attention_mask.sum(-1))
    return {"attention_mask": block_diagonal_mask(attention_mask, compute_dtype(model))}


def score_tokens(logits: Tensor, batch: TrainBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Spread log_probs and entropy of attended response tokens over [b, r]."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    logits = logits if temperature == 1.0 else logits / temperature
    here = response_positions(batch)
    chosen = log_probs_from_logits(logits, batch.responses[here])
    return _spread(chosen, here), _spread(entropy_from_logits(logits), here)


def response_positions(batch: TrainBatch) -> Tensor:
    """Return bool [b, r], where a response has a token."""
    return batch.attention_mask[:, -batch.responses.shape[1] :].bool()


def block_diagonal_mask(attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Build the additive mask of packed rows: causal within a row, nothing across.

    Args:
        attention_mask: [b, length], the padded batch's.

    Returns:
        [1, 1, tokens, tokens] of 0 and the dtype's minimum.
    """
    attended = attention_mask.bool()
    row = torch.arange(len(attended), device=attended.device)[:, None].expand_as(attended)[attended]
    allowed = (row[:, None] == row[None, :]).tril()
    mask = torch.zeros(allowed.shape, dtype=dtype, device=attended.device)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min)[None, None]


def _choosing_positions(batch: TrainBatch) -> Tensor:
    """Return where, in the packed sequence, the token before each response token lies."""
    attended = batch.attention_mask.bool()
    place = attended.flatten().cumsum(0).view(attended.shape) - 1
    width = batch.responses.shape[1]
    return place[:, -width:][response_positions(batch)] - 1


def _spread(values: Tensor, here: Tensor) -> Tensor:
    return torch.zeros(here.shape, dtype=values.dtype, device=values.device).masked_scatter(
        here, values
    )
