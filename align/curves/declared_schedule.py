"""The learning rate that a configuration declares, as a function of the training step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from align.core.config_value import EffectiveConfig, EffectiveValue

Formula = Callable[..., float]
VERL, MEGATRON = "verl", "megatron"

STATED = ("actor.lr", "actor.lr_schedule", "actor.min_lr", "trainer.total_steps")
_WARMUP = ("actor.lr_warmup_steps", "actor.lr_warmup_fraction")
_UPDATES = "derived.optimizer_steps_per_iteration"
_OPTIONS = "actor.lr_options."
_FSDP = ("fsdp", "fsdp2")  # verl's Megatron workers step another scheduler


@dataclass(frozen=True, slots=True)
class Formulas:
    """The two laws, as `align.objective.schedules` has them."""

    verl: Formula
    megatron: Formula


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """One run's schedule.

    Args:
        law: `VERL` or `MEGATRON`.
        lr: the greatest rate.
        after: rate once so many training steps are done; verl's takes whole numbers alone.
        updates: optimizer steps of one training step; None where the configuration does not tell.
        inputs: what it follows from, equal for equally configured runs: lr, shape, least rate,
            warmup in steps, total steps (None where no rate depends on it).
        values: the effective values it was read from.
    """

    law: str
    lr: float
    after: Callable[[float], float]
    updates: int | None
    inputs: tuple[str | float | None, ...]
    values: tuple[EffectiveValue, ...]

    def during(self, step: int) -> tuple[float, float]:
        """Return the least and the greatest rate from before to after training step 1, 2, …."""
        parts = (self.updates or 1) if self.law == MEGATRON else 1
        rates = [self.after(max(0, step - 1 + k / parts)) for k in range(parts + 1)]
        return min(rates), max(rates)


def declared_schedule(config: EffectiveConfig, formulas: Formulas) -> DeclaredSchedule | None:
    """Read the schedule from a configuration; None where anything it depends on is not known."""
    law, lr = _law(config), _number(config, "actor.lr")
    style = _value(config, "actor.lr_schedule")
    total, min_lr = _whole(config, "trainer.total_steps"), _number(config, "actor.min_lr")
    warmup = _warmup(config, total)
    started_late = _number(config, "critic.warmup_steps") or 0.0
    if law is None or not lr or lr <= 0 or not isinstance(style, str) or warmup is None:
        return None
    if started_late > 0 or min_lr is None:
        return None
    updates = _whole(config, _UPDATES)
    needs_total = law == MEGATRON or style != "constant"
    if needs_total and not total:
        return None
    law_of = _verl if law == VERL else _megatron
    after = law_of(config, formulas, lr, style, warmup, total or 0, min_lr, updates)
    if after is None:
        return None
    inputs = (lr, style, min_lr, warmup, total if needs_total else None)
    names = (*STATED, *_WARMUP)
    values = tuple(config.values[name] for name in names if name in config.values)
    return DeclaredSchedule(law, lr, after, updates, inputs, values)


def _law(config: EffectiveConfig) -> str | None:
    if config.framework == "mindspeed_rl":
        return MEGATRON
    if config.framework == "stack":
        return MEGATRON if _value(config, "loss.options.definitions") == "mindspeed_rl" else VERL
    fsdp = config.framework == "verl" and _value(config, "actor.strategy") in _FSDP
    return VERL if fsdp else None


def _warmup(config: EffectiveConfig, total: int | None) -> float | None:
    """Return the warmup in steps; verl truncates the fraction to whole steps, Megatron does not."""
    stated = _number(config, "actor.lr_warmup_steps")
    if stated is not None and stated > 0:
        return stated
    fraction = _number(config, "actor.lr_warmup_fraction")
    if not fraction:
        return fraction if fraction is None else 0.0
    if not total:
        return None
    return fraction * total if _law(config) == MEGATRON else float(int(fraction * total))


def _verl(
    config: EffectiveConfig,
    formulas: Formulas,
    lr: float,
    style: str,
    warmup: float,
    total: int,
    min_lr: float,
    updates: int | None,
) -> Callable[[float], float] | None:
    options = {
        name.removeprefix(_OPTIONS): value.value
        for name, value in config.values.items()
        if name.startswith(_OPTIONS) and value.value is not None
    }
    cycles = options.pop("num_cycles", 0.5)
    zero_indexed = options.pop("zero_indexed_step", True)
    if options or style not in ("constant", "cosine") or not isinstance(cycles, (int, float)):
        return None
    return lambda step: formulas.verl(
        int(step),
        lr=lr,
        style=style,
        num_warmup_steps=int(warmup),
        num_training_steps=total,
        min_lr_ratio=min_lr / lr,
        num_cycles=float(cycles),
        zero_indexed_step=bool(zero_indexed),
    )


def _megatron(
    config: EffectiveConfig,
    formulas: Formulas,
    lr: float,
    style: str,
    warmup: float,
    total: int,
    min_lr: float,
    updates: int | None,
) -> Callable[[float], float] | None:
    """Count training steps in batches: every optimizer step advances by its mini-batch."""
    epochs = _whole(config, "actor.ppo_epochs")
    known = style in ("constant", "linear", "cosine")
    if not known or epochs is None or not warmup < total:
        return None
    return lambda step: formulas.megatron(
        step * epochs, lr=lr, style=style, min_lr=min_lr, warmup_samples=warmup, decay_samples=total
    )


def _value(config: EffectiveConfig, name: str) -> object:
    found = config.values.get(name)
    return None if found is None else found.value


def _number(config: EffectiveConfig, name: str) -> float | None:
    value = _value(config, name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None  # type: ignore[arg-type]


def _whole(config: EffectiveConfig, name: str) -> int | None:
    number = _number(config, name)
    return int(number) if number is not None and number > 0 and number.is_integer() else None
