"""GRPO (Shao et al. 2024, arXiv 2402.03300), Dr.GRPO, RLOO and GSPO by configuration."""

from __future__ import annotations

from align.objective import advantages as estimators
from align.objective import mindspeed_rl
from align.stack.algorithms.policy import outcome_scores, policy_loss, with_advantages
from align.stack.batch import TrainBatch
from align.stack.config import StackConfig

loss = policy_loss


def advantages(batch: TrainBatch, config: StackConfig) -> TrainBatch:
    """Compare every response with the others to its prompt; prompts are told apart by uid."""
    scores, mask = outcome_scores(batch), batch.response_mask
    if config.stack.definitions == "mindspeed_rl":
        return with_advantages(
            batch, mindspeed_rl.group_norm_advantages(scores, mask, config.rollout.n)
        )
    groups = estimators.group_by_uid(batch.uid).to(scores.device)
    if config.algorithm.adv_estimator == "rloo":
        return with_advantages(batch, estimators.rloo(scores, mask, groups))
    by_std = config.algorithm.norm_adv_by_std_in_grpo
    return with_advantages(batch, estimators.grpo(scores, mask, groups, normalise_by_std=by_std))
