"""PPO (Schulman et al. 2017, arXiv 1707.06347) with a critic and GAE."""

from __future__ import annotations

from align.objective import mindspeed_rl
from align.objective.gae import gae
from align.objective.masked import whiten
from align.stack.algorithms.policy import policy_loss, with_advantages
from align.stack.batch import TrainBatch, given
from align.stack.config import StackConfig

loss = policy_loss


def advantages(batch: TrainBatch, config: StackConfig) -> TrainBatch:
    """Estimate from the critic's values, then whiten over the batch."""
    rewards, values, mask = batch.token_level_rewards, given(batch.values), batch.response_mask
    gamma, lam = config.algorithm.gamma, config.algorithm.lam
    if config.stack.definitions == "mindspeed_rl":
        raw, returns = mindspeed_rl.gae(rewards, values, gamma=gamma, lam=lam)
        return with_advantages(batch, mindspeed_rl.whiten(raw, mask), returns)
    raw, returns = gae(rewards, values, mask, gamma=gamma, lam=lam)
    return with_advantages(batch, whiten(raw, mask), returns)
