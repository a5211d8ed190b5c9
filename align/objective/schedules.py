"""Learning-rate schedules of both frameworks, as plain numbers.

verl counts trainer steps from 0 and logs `actor/lr` after stepping the scheduler. Megatron, and
so MindSpeed-RL, counts *samples*: it advances by the mini-batch (all ranks) per optimizer step.
"""

from __future__ import annotations

import math

from align.objective.errors import ObjectiveError


def verl_lr(
    step: int,
    *,
    lr: float,
    style: str = "constant",
    num_warmup_steps: int = 0,
    num_training_steps: int = 0,
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
    init_lr_ratio: float = 0.0,
    zero_indexed_step: bool = True,
) -> float:
    """Compute verl's learning rate after `step` scheduler steps (0 during the first update).

    Args:
        lr: `optim.lr`, the greatest rate.
        style: "constant" or "cosine", `optim.lr_scheduler_type`.
        num_warmup_steps: linear from init_lr_ratio × lr; the first update has rate 0 by default.
        num_training_steps: `optim.total_training_steps`; past it cosine rises again.
        min_lr_ratio, num_cycles, init_lr_ratio, zero_indexed_step: of cosine alone.

    Raises:
        ObjectiveError: unknown style.

    Source: verl 0.9.1 `get_constant_schedule_with_warmup`, `get_cosine_schedule_with_warmup`.
    """
    if style == "constant":
        return lr * (step / max(1, num_warmup_steps) if step < num_warmup_steps else 1.0)
    if style != "cosine":
        raise _unknown(style, "constant or cosine")
    step += 0 if zero_indexed_step else 1
    if step < num_warmup_steps:
        return lr * (init_lr_ratio + (1 - init_lr_ratio) * step / max(1, num_warmup_steps))
    progress = (step - num_warmup_steps) / max(1, num_training_steps - num_warmup_steps)
    wave = math.cos(math.pi * num_cycles * 2.0 * progress)
    return lr * max(min_lr_ratio, (1 + min_lr_ratio) * 0.5 + (1 - min_lr_ratio) * 0.5 * wave)


def megatron_lr(
    num_samples: int,
    *,
    lr: float,
    style: str = "linear",
    min_lr: float = 0.0,
    init_lr: float = 0.0,
    warmup_samples: int = 0,
    decay_samples: int,
) -> float:
    """Compute Megatron's learning rate after num_samples samples have been trained on.

    Args:
        num_samples: sum of the increments so far; 0 during the first update.
        lr, min_lr, init_lr: `lr`, `min_lr`, `lr_warmup_init`.
        style: `lr_decay_style`: constant, linear, cosine or inverse-square-root.
        warmup_samples: `lr_warmup_fraction` × decay_samples, or warmup iterations × batch.
        decay_samples: `lr_decay_iters` or `train_iters`, × global_batch_size; min_lr after it.

    Raises:
        ObjectiveError: unknown style, or warmup not shorter than the decay.

    Source: megatron-core 0.12.1 `OptimizerParamScheduler.get_lr`; MindSpeed-RL
    `base_training_engine.update` for the increment.
    """
    if not 0 <= warmup_samples < decay_samples:
        raise ObjectiveError(
            where="megatron_lr",
            key="lr_warmup_fraction",
            problem=f"warmup of {warmup_samples} samples leaves none of {decay_samples} to decay",
            fix="shorten the warmup",
        )
    if warmup_samples and num_samples <= warmup_samples:
        return init_lr + (lr - init_lr) * num_samples / warmup_samples
    if style == "constant":
        return lr
    if num_samples > decay_samples:
        return min_lr
    if style == "inverse-square-root":
        return max(min_lr, lr * math.sqrt(max(warmup_samples, 1) / max(num_samples, 1)))
    return min_lr + (lr - min_lr) * _remaining(num_samples, style, warmup_samples, decay_samples)


def _remaining(num_samples: int, style: str, warmup_samples: int, decay_samples: int) -> float:
    progress = (num_samples - warmup_samples) / (decay_samples - warmup_samples)
    if style == "linear":
        return 1.0 - progress
    if style == "cosine":
        return 0.5 * (math.cos(math.pi * progress) + 1.0)
    raise _unknown(style, "constant, linear, cosine or inverse-square-root")


def _unknown(style: str, known: str) -> ObjectiveError:
    return ObjectiveError(
        where="learning-rate schedule",
        key="lr_decay_style",
        problem=f"{style!r} is not known",
        fix=f"use {known}",
    )
