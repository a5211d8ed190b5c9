"""AdamW and the learning rate, as verl or as MindSpeed-RL (Megatron) defines them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from align.frameworks.schedules import megatron_lr, verl_lr
from align.stack.config import StackConfig
from align.stack.config_sections import OptimConfig


def build_optimizer(model: nn.Module, config: StackConfig) -> torch.optim.Optimizer:
    """Make the actor's AdamW."""
    return adamw(model, config.actor.optim, config.stack.definitions)


def adamw(model: nn.Module, optim: OptimConfig, definitions: str) -> torch.optim.Optimizer:
    """Make AdamW over all parameters, in one group or two.

    verl decays every parameter. Megatron exempts biases and every 1-D parameter, which are the
    norms (`get_param_groups`: `no_wd = name.endswith(".bias") or len(param.shape) == 1`).
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if definitions == "mindspeed_rl":
        exempt = [p for name, p in named if name.endswith(".bias") or p.ndim == 1]
        decayed = [p for name, p in named if not (name.endswith(".bias") or p.ndim == 1)]
    else:
        decayed, exempt = [p for _, p in named], []
    groups: list[dict[str, Any]] = [
        {"params": decayed},
        {"params": exempt, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=optim.lr,
        betas=optim.betas,
        eps=float(optim.override_optimizer_config.get("eps", 1e-8)),
        weight_decay=optim.weight_decay,
        foreach=True,
    )


def learning_rate(config: StackConfig, step: int, update: int) -> float:
    """Return the actor's learning rate of one optimizer step.

    Args:
        config: of the run.
        step: training step, from 0.
        update: optimizer step within it, from 0.
    """
    return scheduled(config, config.actor.optim, config.actor.ppo_mini_batch_size, step, update)


def scheduled(
    config: StackConfig, optim: OptimConfig, mini_batch_size: int, step: int, update: int
) -> float:
    """Compute a learning rate; verl counts training steps, Megatron samples per optimizer step.

    Megatron's decay is `train_iters` × batch, although the count advances by every optimizer
    step: with several updates a training step the decay ends early, as it does there.
    """
    num_steps = optim.total_training_steps
    warmup = optim.lr_warmup_steps
    if warmup <= 0:
        warmup = int(optim.lr_warmup_steps_ratio * num_steps)
    if config.stack.definitions == "verl":
        return verl_lr(
            step,
            lr=optim.lr,
            style=optim.lr_scheduler_type,
            num_warmup_steps=warmup,
            num_training_steps=num_steps,
            min_lr_ratio=optim.min_lr_ratio,
            num_cycles=optim.num_cycles,
        )
    batch_size = config.data.train_batch_size
    updates = batch_size // mini_batch_size * config.actor.ppo_epochs
    return megatron_lr(
        (step * updates + update) * mini_batch_size,
        lr=optim.lr,
        style=optim.lr_scheduler_type,
        min_lr=optim.min_lr_ratio * optim.lr,
        warmup_samples=warmup * batch_size,
        decay_samples=num_steps * batch_size,
    )


def optimizer_step(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Take one step at a learning rate and clear the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
