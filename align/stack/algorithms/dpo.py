"""DPO (Rafailov et al. 2023, arXiv 2305.18290) on pairs of the policy's own responses.

Of every prompt's responses the best and the worst make a pair, chosen before rejected in adjacent
rows, so that micro-batches of even size keep pairs whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from align.objective.advantages import group_by_uid
from align.objective.aggregate import GlobalBatch
from align.objective.dpo import (
    preference_margin,
    robust_loss,
    sequence_log_probs,
    sigmoid_loss,
)
from align.stack.algorithms.policy import outcome_scores, with_advantages
from align.stack.batch import TrainBatch, given
from align.stack.config import StackConfig
from align.stack.loss import ActorLoss


def advantages(batch: TrainBatch, config: StackConfig) -> TrainBatch:
    """Keep the pairs, with advantage +1 for the chosen and -1 for the rejected response.

    The loss does not read the advantages; they say which row of a pair is which. A prompt whose
    responses score alike makes no pair; without any pair the batch is empty.
    """
    scores, groups = outcome_scores(batch).cpu(), group_by_uid(batch.uid)
    rows: list[int] = []
    for group in range(int(groups.max()) + 1):
        members = (groups == group).nonzero().squeeze(-1)
        best, worst = members[scores[members].argmax()], members[scores[members].argmin()]
        if scores[best] > scores[worst]:
            rows += [int(best), int(worst)]
    pairs = batch.rows(rows)
    signs = torch.ones(len(rows), 1, dtype=scores.dtype)
    signs[1::2] = -1.0
    mask = pairs.response_mask
    return with_advantages(pairs, signs.to(mask.device) * mask.to(scores.dtype))


def loss(
    batch: TrainBatch,
    log_probs: Tensor,
    entropy: Tensor,
    config: StackConfig,
    totals: GlobalBatch,
) -> ActorLoss:
    """Average the pair losses over the mini-batch's pairs."""
    dpo = config.stack.dpo
    policy = sequence_log_probs(log_probs, batch.response_mask)
    reference = sequence_log_probs(given(batch.ref_log_prob), batch.response_mask)
    margin = preference_margin(policy[::2], policy[1::2], reference[::2], reference[1::2])
    compute = robust_loss if dpo.loss_type == "robust" else sigmoid_loss
    losses = compute(margin, beta=dpo.beta, label_smoothing=dpo.label_smoothing)
    num_pairs = (totals.num_sequences or log_probs.shape[0]) / 2
    total = losses.sum() / num_pairs * totals.dp_size
    return ActorLoss(
        total=total,
        summed={"actor/loss": float(total.detach())},
        averaged={
            "rewards/margins": dpo.beta * float(margin.detach().mean()),
            "rewards/accuracies": float((margin.detach() > 0).double().mean()),
        },
    )
