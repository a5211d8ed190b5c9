"""What DAPO adds to GRPO (Yu et al. 2025, arXiv 2503.14476).

Clip-higher is `policy_loss.Clip(low, high)`, the token-level loss `LossAggregation.TOKEN_MEAN`;
here are the overlong penalty and dynamic sampling.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from align.objective.errors import ObjectiveError


def overlong_penalty(
    response_lengths: Tensor,
    *,
    max_response_length: int,
    buffer_length: int,
    penalty_factor: float = 1.0,
    bounded: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Give what is added to the score of a response that reaches into the buffer at the end.

    0 up to max_response_length - buffer_length tokens, from there falling to -penalty_factor at
    the maximum. Beyond it verl goes on falling; MindSpeed-RL, as the paper, stays (bounded).

    Args:
        response_lengths: int [batch], tokens.
        max_response_length, buffer_length: tokens; verl `max_resp_len`, `overlong_buffer_cfg.len`.
        penalty_factor: in units of score.

    Returns:
        [batch], at most 0.

    Raises:
        ObjectiveError: the buffer is not within the maximum.

    Source: verl 0.9.1 DAPO reward manager; MindSpeed-RL `compute_verifier_score`.
    """
    if not 0 < buffer_length <= max_response_length:
        raise ObjectiveError(
            where="overlong_penalty",
            key="buffer_length",
            problem=f"is {buffer_length} tokens of at most {max_response_length}",
            fix="use 1 to max_response_length tokens, or no penalty at all",
        )
    exceeding = response_lengths.to(dtype) - (max_response_length - buffer_length)
    if bounded:
        exceeding = exceeding.clamp(max=buffer_length)
    return (-exceeding / buffer_length * penalty_factor).clamp(max=0)


def has_signal(metric: Tensor, groups: Tensor, *, keep_nan: bool = True) -> Tensor:
    """Tell which responses dynamic sampling keeps: those whose group does not agree on the metric.

    A group of one is kept. Equality is numpy's population std = 0 in float64, as in both
    frameworks: equal values whose mean is not exact (three times 0.1) are kept.

    Args:
        metric: float [batch], `filter_groups.metric`: a score or reward extra.
        groups: int64 [batch].
        keep_nan: what becomes of a group with a NaN: verl keeps it (its std is not 0),
            MindSpeed-RL drops it (its std is not above 0).

    Returns:
        bool [batch].

    Source: verl 0.9.1 `ReplayBuffer._dapo_filtered_keys`; MindSpeed-RL `DynamicSampling`.
    """
    kept = torch.ones_like(groups, dtype=torch.bool)
    for group in set(groups.tolist()):
        members = groups == group
        if int(members.sum()) > 1:
            std = float(np.std(metric[members].double().cpu().numpy()))
            kept[members] = keep_nan if std != std else std > 0
    return kept
