"""One file an algorithm: its advantages and its loss, from `align.objective`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from align.objective.aggregate import GlobalBatch
from align.stack.algorithms import dapo, dpo, grpo, ppo
from align.stack.batch import TrainBatch
from align.stack.config import StackConfig
from align.stack.loss import ActorLoss


@dataclass(frozen=True)
class Algorithm:
    """What `pipeline.advantages` and `pipeline.loss` do for one ``stack.algorithm``."""

    advantages: Callable[[TrainBatch, StackConfig], TrainBatch]
    loss: Callable[[TrainBatch, Tensor, Tensor, StackConfig, GlobalBatch], ActorLoss]


ALGORITHMS: Mapping[str, Algorithm] = {
    "grpo": Algorithm(grpo.advantages, grpo.loss),
    "ppo": Algorithm(ppo.advantages, ppo.loss),
    "dapo": Algorithm(dapo.advantages, dapo.loss),
    "dpo": Algorithm(dpo.advantages, dpo.loss),
}


def advantages(batch: TrainBatch, config: StackConfig) -> TrainBatch:
    """Return the batch with advantages and returns [b, r] of the configured algorithm."""
    return ALGORITHMS[config.stack.algorithm].advantages(batch, config)


def loss(
    batch: TrainBatch,
    log_probs: Tensor,
    entropy: Tensor,
    config: StackConfig,
    totals: GlobalBatch,
) -> ActorLoss:
    """Compute the configured algorithm's loss of one micro-batch.

    Args:
        batch: the micro-batch.
        log_probs: float [b, r], nats, with gradient.
        entropy: float [b, r], nats, with gradient where entropy_coeff is not 0.
        config: of the run.
        totals: tokens and sequences of the whole mini-batch over all ranks.
    """
    return ALGORITHMS[config.stack.algorithm].loss(batch, log_probs, entropy, config, totals)
