"""Log-probabilities of given tokens from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from align.objective.errors import ObjectiveError

_EXACT = (torch.float32, torch.float64)


def log_probs_from_logits(logits: Tensor, labels: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Compute log softmax(logits / temperature) at the labels, over the whole vocabulary.

    No top-k or top-p: a rollout engine that renormalises over survivors gives other values.
    A label whose logit is -inf gives -inf; logits that are all -inf give NaN.

    Args:
        logits: float [..., vocab_size]. float32 and float64 subtract the log-sum-exp; narrower
            types go through log_softmax, which rounds once, as in verl.
        labels: int64 [...].
        temperature: the sampling temperature; both frameworks divide training logits by it.

    Returns:
        [...] in nats, in the dtype of logits.

    Raises:
        ObjectiveError: temperature of 0 or below.

    Source: verl 0.9.1 `logprobs_from_logits_v2`; TRL `selective_log_softmax`.
    """
    _check(temperature)
    scaled = logits if temperature == 1.0 else logits / temperature
    index = labels[..., None]
    if logits.dtype in _EXACT:
        return scaled.gather(-1, index).squeeze(-1) - torch.logsumexp(scaled, dim=-1)
    return torch.log_softmax(scaled, dim=-1).gather(-1, index).squeeze(-1)


def _check(temperature: float) -> None:
    if not temperature > 0:
        raise ObjectiveError(
            where="log_probs_from_logits",
            key="temperature",
            problem=f"is {temperature}",
            fix="use a positive temperature; greedy decoding is scored at 1.0",
        )
