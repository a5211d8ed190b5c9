"""Entropy of the policy at every position."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Compute -Σ p log p = logsumexp(logits) - Σ softmax(logits) logits.

    Args:
        logits: float [..., vocab_size], already divided by the temperature.

    Returns:
        [...] in nats, in the dtype of logits. A logit of -inf gives NaN (0 × -inf), as in verl,
        MindSpeed-RL and TRL. The entropy loss is its aggregate; the policy loss *subtracts*
        entropy_coeff times it.

    The difference of two large numbers keeps only digits above |logits| × the dtype's epsilon: with
    logits of 250 in float32 an entropy of 1e-5 comes out as 0. TRL's -Σ p log p does not lose them.

    Source: verl 0.9.1 `entropy_from_logits`; MindSpeed-RL `vocab_parallel_entropy`.
    """
    return torch.logsumexp(logits, dim=-1) - (torch.softmax(logits, dim=-1) * logits).sum(-1)
