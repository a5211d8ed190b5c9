"""The same log_probs and advantages become another objective."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from align.core.rung import Rung
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.objective.aggregate import GlobalBatch
    from align.stack.batch import TrainBatch
    from align.stack.config import StackConfig
    from align.stack.loss import ActorLoss
    from align.stack.pipeline import Pipeline


def kl_sign(pipeline: Pipeline) -> Pipeline:
    """Reward distance from the reference model instead of punishing it."""

    def loss(
        batch: TrainBatch,
        log_probs: Tensor,
        entropy: Tensor,
        config: StackConfig,
        totals: GlobalBatch,
    ) -> ActorLoss:
        actor = replace(config.actor, kl_loss_coef=-config.actor.kl_loss_coef)
        group = replace(config.actor_rollout_ref, actor=actor)
        flipped = replace(config, actor_rollout_ref=group)
        return pipeline.loss(batch, log_probs, entropy, flipped, totals)

    return replace(pipeline, loss=loss)


def micro_batch_mean(pipeline: Pipeline) -> Pipeline:
    """Average every micro-batch by its own tokens, then the micro-batches."""

    def loss(
        batch: TrainBatch,
        log_probs: Tensor,
        entropy: Tensor,
        config: StackConfig,
        totals: GlobalBatch,
    ) -> ActorLoss:
        share = log_probs.shape[0] / (totals.num_sequences or log_probs.shape[0])
        own = replace(totals, num_tokens=None, num_sequences=None)
        result = pipeline.loss(batch, log_probs, entropy, config, own)
        summed = {name: share * value for name, value in result.summed.items()}
        return replace(result, total=share * result.total, summed=summed)

    return replace(pipeline, loss=loss)


FAULTS = (
    Fault(
        "kl_sign",
        Rung.LOSS,
        "The KL term enters the loss with the wrong sign.",
        "report 63",
        "loss.kl_sign",
        ("trainer_inputs", "metrics"),
        change=kl_sign,
    ),
    Fault(
        "micro_batch_mean",
        Rung.LOSS,
        "Token losses are averaged within every micro-batch, so short responses weigh more.",
        "report 32",
        "loss.aggregation",
        ("trainer_inputs", "metrics"),
        change=micro_batch_mean,
    ),
)
