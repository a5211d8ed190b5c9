"""KL to the reference model as part of the reward (``algorithm.use_kl_in_reward``)."""

from __future__ import annotations

from dataclasses import replace

from align.objective.gae import penalise_kl
from align.objective.kl import kl_estimate, next_kl_coefficient
from align.stack.batch import TrainBatch, given
from align.stack.config import StackConfig
from align.stack.metrics import kl_metrics


def with_kl_penalty(
    batch: TrainBatch, coefficient: float, config: StackConfig
) -> tuple[TrainBatch, dict[str, float], float]:
    """Penalise every token's reward; return the batch, metrics and the next coefficient."""
    control, mask = config.algorithm.kl_ctrl, batch.response_mask
    kl = kl_estimate(
        given(batch.old_log_probs), given(batch.ref_log_prob), config.algorithm.kl_penalty
    )
    penalised = penalise_kl(batch.token_level_rewards, kl, mask, coefficient)
    values = kl_metrics(kl, batch, coefficient)
    if control.type == "adaptive":
        coefficient = next_kl_coefficient(
            coefficient,
            values["actor/reward_kl_penalty"],
            target=control.target_kl,
            horizon=control.horizon,
            num_steps=len(mask),
        )
    return replace(batch, token_level_rewards=penalised), values, coefficient
