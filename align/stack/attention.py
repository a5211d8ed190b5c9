"""Scaled dot-product attention, written out: every rounding is in sight and can be chosen.

Registered with transformers under `NAME`, so models use it like "eager" or "sdpa". It takes
transformers' additive masks, a block-diagonal one of packed sequences included.
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
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(query keyᵀ · scaling + mask) value, softmax in float32 unless told not to.

    Args:
        module: an attention layer; `choose_softmax` may have marked it.
        query: [batch, heads, length, head_dim]; key, value: [batch, kv_heads, total, head_dim].
        attention_mask: additive [batch, 1, length, total]; None attends everywhere.

    Returns:
        [batch, length, heads, head_dim] and the weights, both in query's dtype.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask[..., : key.shape[-2]].to(scores.dtype)
    widen = getattr(module, "softmax_float32", True) and scores.dtype.itemsize < 4
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32 if widen else None)
    weights = nn.functional.dropout(weights.to(query.dtype), dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def choose_softmax(model: nn.Module, *, in_float32: bool) -> None:
    """Have every layer's softmax computed in float32, or in the dtype the scores come in."""
    for module in model.modules():
        module.softmax_float32 = in_float32


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, eager_mask)
