"""Advantages from one score a response, relative to the other responses to the same prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


def group_by_uid(uids: Sequence[Hashable]) -> Tensor:
    """Number the groups of equal uid, wherever their rows are, as verl groups.

    Returns:
        int64 [len(uids)], numbered in order of first appearance.
    """
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in uids], dtype=torch.int64)


def grpo(
    scores: Tensor,
    response_mask: Tensor,
    groups: Tensor,
    *,
    normalise_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Tensor:
    """Give every token (score - mean of its group) / (std of its group + epsilon).

    Degenerate groups, as in verl: a group of one keeps its raw score (mean 0, std 1). A group of
    equal scores gives 0 only where their float mean is exact: three scores of 0.9 in float32
    have a mean one rounding off, and dividing by 1e-6 makes that 0.056. One NaN or infinite score
    makes its whole group NaN, and no other.

    Args:
        scores: float [batch], the sum of a response's token_level_rewards.
        response_mask: [batch, response_len].
        groups: int64 [batch], equal for responses to one prompt.
        normalise_by_std: False is Dr.GRPO (verl `norm_adv_by_std_in_grpo: false`).
        epsilon: 1e-6 in verl, 1e-4 in TRL.

    Returns:
        [batch, response_len] in the dtype of scores, 0 outside the mask, no gradient.

    Source: verl 0.9.1 `compute_grpo_outcome_advantage`; std with Bessel's correction.
    """
    mean, std = _group_mean_and_std(scores.detach(), groups)
    centred = scores.detach() - mean
    return spread_over_tokens(
        centred / (std + epsilon) if normalise_by_std else centred, response_mask
    )


def rloo(scores: Tensor, response_mask: Tensor, groups: Tensor) -> Tensor:
    """Give every token its score minus the mean score of the other responses of its group.

    A group of one keeps its raw score, as in verl; TRL gives it 0.

    Args:
        scores: float [batch].
        response_mask: [batch, response_len].
        groups: int64 [batch].

    Returns:
        [batch, response_len] in the dtype of scores, 0 outside the mask, no gradient.

    Source: verl 0.9.1 `compute_rloo_outcome_advantage`: n/(n-1) (score - mean).
    """
    mean, _ = _group_mean_and_std(scores.detach(), groups)
    num_members = (groups[:, None] == groups[None, :]).sum(-1).to(scores.dtype)
    factor = torch.where(num_members > 1, num_members / (num_members - 1), 1.0)
    return spread_over_tokens(scores.detach() * factor - mean * factor, response_mask)


def spread_over_tokens(values: Tensor, response_mask: Tensor) -> Tensor:
    """Repeat a value a response over its tokens: [batch] to [batch, response_len], 0 elsewhere.

    It multiplies, as both frameworks do, so a NaN value is NaN outside the mask too.
    """
    return values[:, None] * response_mask.to(values.dtype)


def _group_mean_and_std(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Give every row mean and std of its group: 0 and 1 where it is alone."""
    mean, std = torch.zeros_like(scores), torch.ones_like(scores)
    for group in set(groups.tolist()):
        members = groups == group
        if int(members.sum()) > 1:
            mean[members] = scores[members].mean()
            std[members] = scores[members].std()
    return mean, std
