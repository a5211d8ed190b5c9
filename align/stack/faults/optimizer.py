"""The same gradient becomes another update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from align.core.rung import Rung
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.stack.config import StackConfig
    from align.stack.pipeline import Pipeline

SCHEDULE = "optimizer.lr_schedule"


def warmup_in_optimizer_steps(pipeline: Pipeline) -> Pipeline:
    """Advance the schedule by every optimizer step, not by every training step."""

    def learning_rate(config: StackConfig, step: int, update: int) -> float:
        updates = config.data.train_batch_size // config.actor.ppo_mini_batch_size
        return pipeline.learning_rate(config, step * updates + update, 0)

    return replace(pipeline, learning_rate=learning_rate)


def decay_ends_early(pipeline: Pipeline) -> Pipeline:
    """Take the warm-up off the decay, whose length counts from the first step."""

    def learning_rate(config: StackConfig, step: int, update: int) -> float:
        optim = config.actor.optim
        warmup = int(optim.lr_warmup_steps_ratio * optim.total_training_steps)
        end = optim.total_training_steps - warmup
        if step >= end:
            return 0.0
        shorter = replace(
            optim, total_training_steps=end, lr_warmup_steps=warmup, lr_warmup_steps_ratio=0.0
        )
        group = replace(config.actor_rollout_ref, actor=replace(config.actor, optim=shorter))
        return pipeline.learning_rate(replace(config, actor_rollout_ref=group), step, update)

    return replace(pipeline, learning_rate=learning_rate)


def no_decay_of_vectors(pipeline: Pipeline) -> Pipeline:
    """Exempt 1-D parameters from weight decay, as Megatron does."""

    def build_optimizer(model: nn.Module, config: StackConfig) -> torch.optim.Optimizer:
        megatron = replace(config, stack=replace(config.stack, definitions="mindspeed_rl"))
        return pipeline.build_optimizer(model, megatron)

    return replace(pipeline, build_optimizer=build_optimizer)


def bfloat16_states(pipeline: Pipeline) -> Pipeline:
    """Keep Adam's moments in bfloat16."""

    def optimizer_step(optimizer: torch.optim.Optimizer, lr: float) -> None:
        pipeline.optimizer_step(optimizer, lr)
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].bfloat16())

    return replace(pipeline, optimizer_step=optimizer_step)


def _optimizer(
    name: str,
    what: str,
    field_report: str,
    finding_id: str,
    needs: tuple[str, ...],
    change: Callable[[Pipeline], Pipeline],
) -> Fault:
    return Fault(name, Rung.OPTIMIZER, what, field_report, finding_id, needs, change=change)


FAULTS = (
    _optimizer(
        "warmup_in_optimizer_steps",
        "The learning rate advances with every optimizer step, so warm-up and decay end early.",
        "report 30",
        SCHEDULE,
        ("config", "metrics"),
        warmup_in_optimizer_steps,
    ),
    _optimizer(
        "lr_decay_ends_early",
        "The warm-up is taken off the decay a second time: the last steps have learning rate 0.",
        "report 28",
        SCHEDULE,
        ("config", "metrics"),
        decay_ends_early,
    ),
    _optimizer(
        "weight_decay_of_vectors",
        "Norms and biases are exempt from weight decay.",
        "MindSpeed-RL and Megatron source, seed 000",
        "optimizer.weight_decay",
        ("weights", "gradients"),
        no_decay_of_vectors,
    ),
    _optimizer(
        "adam_states_bfloat16",
        "Adam's moments are kept in bfloat16.",
        "report 34",
        "optimizer.state_dtype",
        ("weights", "gradients"),
        bfloat16_states,
    ),
)
