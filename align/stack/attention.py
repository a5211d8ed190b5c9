"""Scaled dot-product attention, written out: every rounding is in sight and can be chosen.

Registered with transformers under `NAME`, so models use it like "eager" or "sdpa". Packed rows
come with the keyword arguments of transformers' variable-length attention (`packing`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

NAME = "align"


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(query keyᵀ · scaling + mask) value, softmax in float32 unless told otherwise.

    Args:
        module: an attention layer; `choose_softmax` may have marked it.
        query: [batch, heads, length, head_dim]; key, value: [batch, kv_heads, total, head_dim].
        attention_mask: additive [batch, 1, length, total]; None attends everywhere.
        cu_seq_lens_q: int [rows + 1], where each row packed into batch 1 begins, and the end;
            each row is then attended to causally on its own, and the mask is not looked at.

    Returns:
        [batch, length, heads, head_dim] in query's dtype; the weights, None for packed rows.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if cu_seq_lens_q is None:
        return _attend(module, query, key, value, attention_mask, scaling, dropout)
    place, inside = _unpacking(cu_seq_lens_q)
    query, key, value = (
        each[0].transpose(0, 1)[place].transpose(1, 2) for each in (query, key, value)
    )
    # Padding stands behind every token of its row, so that the causal mask hides it.
    lowest = torch.finfo(query.dtype).min
    causal = torch.full((place.shape[1],) * 2, lowest, dtype=query.dtype, device=query.device)
    output, _weights = _attend(module, query, key, value, causal.triu(1), scaling, dropout)
    return output[inside][None], None


def packing(lengths: Tensor) -> dict[str, Any]:
    """Return the keyword arguments that tell a model's attention where packed rows begin.

    Args:
        lengths: int64 [rows].
    """
    bounds = nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    longest = int(lengths.max())
    return {
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def choose_softmax(model: nn.Module, *, in_float32: bool) -> None:
    """Have every layer's softmax computed in float32, or in the dtype the scores come in."""
    for module in model.modules():
        module.softmax_float32 = in_float32  # type: ignore[assignment]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    scores = query @ key.transpose(2, 3) * scaling
    if mask is not None:
        scores = scores + mask[..., : key.shape[-2]].to(scores.dtype)
    weights = _softmax(scores, in_float32=getattr(module, "softmax_float32", True))
    weights = nn.functional.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _softmax(scores: Tensor, *, in_float32: bool) -> Tensor:
    if in_float32 or scores.dtype.itemsize >= 4:
        return torch.softmax(scores, dim=-1)  # rounds once, at the end, whatever the dtype
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)  # rounds after every operation


def _unpacking(bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each token of each row lies in the packed sequence, and which of them exist."""
    starts, lengths = bounds[:-1].long(), bounds.diff()
    steps = torch.arange(int(lengths.max()), device=bounds.device)
    inside = steps[None] < lengths[:, None]
    return torch.where(inside, starts[:, None] + steps, 0), inside


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, eager_mask)
