"""Everything a run holds between its steps, and how it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from align.core.errors import ConfigError, RunError
from align.stack import sharding
from align.stack.config import StackConfig
from align.stack.critic import Critic
from align.stack.dataset import Row
from align.stack.device import find_device, make_deterministic
from align.stack.optimizer import adamw
from align.stack.pipeline import Pipeline
from align.stack.prompts import RenderedPrompt
from align.stack.warmup import warm_weights


@dataclass
class Setup:
    """What the training loop works on; the models and optimizers change in place.

    Args:
        rows: kept rows; an entry of the order counts these.
        prompts: rendered, one a row.
        order: rows of each step, not yet consumed.
        num_consumed: entries of the order taken so far.
        kl_coefficient: of KL in the reward, which may adapt.
    """

    device: torch.device
    tokenizer: Any
    rows: Sequence[Row]
    prompts: Sequence[RenderedPrompt]
    order: Iterator[list[int]]
    model: Any
    rollout_model: Any
    reference: Any | None
    optimizer: torch.optim.Optimizer
    critic: Critic | None
    critic_optimizer: torch.optim.Optimizer | None
    num_consumed: int = 0
    kl_coefficient: float = 0.0


def set_up(config: StackConfig, pipeline: Pipeline, cache: Path) -> Setup:
    """Build tokenizer, rows, models and optimizers; all models start from the same weights.

    Args:
        cache: folder for the weights of the supervised warm-up.

    Raises:
        ConfigError: The device is missing, or fewer rows are left than a batch needs.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]
    make_deterministic(config.stack.num_threads)
    device = find_device(config.trainer.device)
    sharding.join(config)
    tokenizer = pipeline.load_tokenizer(config)
    rows, prompts = _rows(config, pipeline, tokenizer)
    weights = warm_weights(config, cache)

    def whole(build: Any) -> Any:
        return load_weights(build(config, tokenizer), weights).to(device)

    def engine(model: Any) -> Any:
        if sharding.world_size() > 1:
            return sharding.shard(model, config)
        pipeline.apply_numerics(config.stack.numerics.profile, model)
        return model

    actor = whole(pipeline.build_model)
    if config.model.enable_gradient_checkpointing:
        actor.gradient_checkpointing_enable({"use_reentrant": False})
    actor = engine(actor)
    reference = None
    if needs_reference(config):
        reference = engine(whole(pipeline.build_reference_model)).eval().requires_grad_(False)
    critic = engine(Critic(whole(pipeline.build_model))) if needs_critic(config) else None
    rollout_model = whole(pipeline.build_rollout_model).eval()
    pipeline.apply_numerics(config.stack.numerics.profile, rollout_model)
    return Setup(
        device=device,
        tokenizer=tokenizer,
        rows=rows,
        prompts=prompts,
        order=pipeline.row_order(config, len(rows)),
        model=actor,
        rollout_model=rollout_model,
        reference=reference,
        optimizer=pipeline.build_optimizer(actor, config),
        critic=critic,
        critic_optimizer=None if critic is None else _critic_optimizer(critic, config),
        kl_coefficient=config.algorithm.kl_ctrl.kl_coef,
    )


def needs_reference(config: StackConfig) -> bool:
    """Tell whether the reference model's log-probabilities are used."""
    in_objective = config.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    return in_objective or config.stack.algorithm == "dpo"


def needs_critic(config: StackConfig) -> bool:
    """Tell whether advantages come from a critic."""
    return config.algorithm.adv_estimator == "gae"


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Copy weights by name; a tensor that the weights lack keeps its random values, as in
    transformers.

    Raises:
        RunError: A tensor of another shape, such as that of another vocabulary.
    """
    for name, tensor in model.state_dict().items():
        if name not in weights:
            continue
        if weights[name].shape != tensor.shape:
            raise RunError(
                where=name,
                problem=f"is {tuple(tensor.shape)} in the model, but {tuple(weights[name].shape)}"
                " in the weights to start from",
                fix="remove the run's warmup folder, or set stack.warmup.steps=0",
            )
        sharding.fill(tensor, weights[name])
    return model


def _rows(
    config: StackConfig, pipeline: Pipeline, tokenizer: Any
) -> tuple[list[Row], list[RenderedPrompt]]:
    rows = pipeline.load_rows(config)
    prompts = [pipeline.render(row, tokenizer, config) for row in rows]
    kept = pipeline.keep_rows(prompts, config)
    if len(kept) < config.data.train_batch_size:
        raise ConfigError(
            where="configuration",
            key="data.train_batch_size",
            problem=f"is {config.data.train_batch_size}, but {len(kept)} of {len(rows)} rows are"
            f" left by the length filter of {config.data.max_prompt_length} tokens",
            fix="use a smaller batch, or raise data.max_prompt_length",
        )
    return [rows[i] for i in kept], [prompts[i] for i in kept]


def _critic_optimizer(critic: Critic, config: StackConfig) -> torch.optim.Optimizer:
    return adamw(critic, config.critic.optim, config.stack.definitions)
