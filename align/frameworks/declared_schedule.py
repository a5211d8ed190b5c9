"""The learning rate that a configuration declares, as a function of the training step.

What one training step advances the scheduler by:

- verl 0.3 to 0.9, FSDP and Megatron: 1, however many optimizer steps it makes.
- Megatron and MindSpeed-LLM: 1 iteration, in which they count and decay the same samples.
- TRL: its optimizer steps; its total and warmup count them too.
- MindSpeed-RL 2.0 to master: ppo_epochs × n batches. `BaseTrainingEngine.update` counts the
  mini-batch in *sequences* per optimizer step, while Megatron's `lr_decay_steps` is train_iters ×
  global_batch_size *prompts*: with n = 8 the decay ends after an eighth of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from align.core.config_value import ConfigLeaf, EffectiveValue
from align.frameworks.schedule_rates import (
    ScheduleSettings,
    megatron_rate,
    transformers_rate,
    verl_rate,
)
from align.frameworks.schedules import ScheduleError

Values = Mapping[str, EffectiveValue]

STATED = ("actor.lr", "actor.lr_schedule", "actor.min_lr", "trainer.total_steps")
WARMUP = ("actor.lr_warmup_steps", "actor.lr_warmup_fraction")
OPTIONS = "actor.lr_options."
_TOTAL = ("trainer.total_steps", "derived.total_steps")
_ASYNCHRONOUS = ("trainer.mode.async.", "trainer.mode.rollout.")  # steps of several batches
_FSDP = ("fsdp", "fsdp2")
_MEGATRON_SPELLING = {
    "lr_warmup_init": "warmup_init",
    "lr_decay_iters": "decay_steps",
    "lr_wsd_decay_iters": "wsd_decay_steps",
    "lr_wsd_decay_style": "wsd_decay_style",
}
_STATED_ELSEWHERE = ("lr", "min_lr", "lr_decay_style", "lr_warmup_fraction")


class Law(str, Enum):
    """Whose formula, and what advances it."""

    VERL = "verl"
    MEGATRON = "megatron"  # once a training step: verl's Megatron workers
    PER_UPDATE = "megatron per optimizer step"  # the bundled stack's definitions of MindSpeed-RL
    MINDSPEED_RL = "MindSpeed-RL"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """One run's schedule.

    Args:
        law: whose formula.
        lr: the greatest rate.
        style: its shape, as the configuration spells it.
        total: training steps; None where no rate depends on it and it is not known.
        warmup, decay: training steps until the warmup, and the decay, is over; decay is None
            where the rate is constant after the warmup.
        after: rate once so many training steps are done.
        over: the same with another total and the same warmup; None where it is not defined.
        updates: optimizer steps of one training step; None where the configuration does not tell.
        inputs: what it follows from, equal for equally configured runs: lr, shape, least rate,
            warmup as stated, total (None where no rate depends on it).
        values: the effective values it was read from.
    """

    law: Law
    lr: float
    style: str
    total: int | None
    warmup: float
    decay: float | None
    after: Callable[[float], float]
    over: Callable[[int], Callable[[float], float] | None]
    updates: int | None
    inputs: tuple[str | float | None, ...]
    values: tuple[EffectiveValue, ...]

    @property
    def is_constant(self) -> bool:
        """Whether every step has the same rate."""
        return self.decay is None and self.warmup == 0

    def during(self, step: int) -> tuple[float, float]:
        """Return the least and the greatest rate from before to after training step 1, 2, …."""
        per_update = self.law in (Law.PER_UPDATE, Law.MINDSPEED_RL)
        parts = (self.updates or 1) if per_update else 1
        rates = [self.after(max(0, step - 1 + k / parts)) for k in range(parts + 1)]
        return min(rates), max(rates)


def declared_schedule(
    values: Values, framework: str | None, *, logged: bool = False
) -> DeclaredSchedule | None:
    """Read the schedule from effective values; None where anything it depends on is not known.

    Args:
        logged: count steps as the framework's log does; TRL's counts optimizer steps.
    """
    law, settings = law_of(values, framework), _settings(values, framework)
    late = _number(values, "critic.warmup_steps") or 0.0  # the actor starts later
    if law is None or settings is None or late > 0:
        return None
    if any(name.startswith(_ASYNCHRONOUS) for name in values):
        return None
    updates = _whole(values, "derived.optimizer_steps_per_iteration")
    advance = _advance(values, law)
    if logged and law is Law.TRANSFORMERS:
        updates, advance = 1, 1.0
    rate_of = {Law.VERL: verl_rate, Law.TRANSFORMERS: transformers_rate}.get(law, megatron_rate)
    made = rate_of(settings)
    if made is None or advance is None:
        return None
    rate, decay = made
    try:
        rate(0), rate(settings.warmup + 1)
    except (ScheduleError, ArithmeticError):
        return None

    def over(total: int) -> Callable[[float], float] | None:
        options = {k: v for k, v in settings.options.items() if k != "decay_steps"}
        other = rate_of(replace(settings, total=total, options=options))
        return None if other is None else lambda step: other[0](step * advance)

    length = settings.total if decay is not None else None
    names = (*STATED, *WARMUP, *sorted(name for name in values if name.startswith(OPTIONS)))
    return DeclaredSchedule(
        law,
        settings.lr,
        settings.style,
        settings.total,
        settings.warmup / advance,
        None if decay is None else decay / advance,
        lambda step: rate(step * advance),
        over,
        updates,
        (settings.lr, settings.style, settings.min_lr, settings.warmup, length),
        tuple(values[name] for name in names if name in values),
    )


def law_of(values: Values, framework: str | None) -> Law | None:
    """Name the formula of a framework and its training engine, None where it is not known."""
    strategy = _value(values, "actor.strategy")
    if framework == "mindspeed_rl":
        return Law.MINDSPEED_RL
    if framework == "megatron":
        return Law.MEGATRON
    if framework == "trl":
        return Law.TRANSFORMERS
    if framework == "stack":
        megatron = _value(values, "loss.options.definitions") == "mindspeed_rl"
        return Law.PER_UPDATE if megatron else Law.VERL
    if framework != "verl":
        return None
    if strategy == "megatron":
        return Law.MEGATRON
    return Law.VERL if strategy in _FSDP else None


def _advance(values: Values, law: Law) -> float | None:
    """Return what one training step adds to the count that `ScheduleSettings` is in."""
    epochs, group = _number(values, "actor.ppo_epochs"), _number(values, "rollout.n")
    if law is Law.PER_UPDATE:
        return epochs or None
    if law is Law.TRANSFORMERS:
        return _number(values, "derived.optimizer_steps_per_iteration") or 1.0
    if law is Law.MINDSPEED_RL:
        return epochs * group or None if epochs is not None and group is not None else None
    return 1.0


def _settings(values: Values, framework: str | None) -> ScheduleSettings | None:
    lr, style = _number(values, "actor.lr"), _value(values, "actor.lr_schedule")
    min_lr = _number(values, "actor.min_lr")
    law = law_of(values, framework)
    if min_lr is None and law is Law.TRANSFORMERS:
        min_lr = 0.0
    if lr is None or lr <= 0 or not isinstance(style, str) or min_lr is None:
        return None
    total = next((t for t in (_whole(values, name) for name in _TOTAL) if t), None)
    if total is None and style not in ("constant", "constant_with_warmup"):
        return None
    if total is not None and law is Law.TRANSFORMERS:
        total = round(total * (_number(values, "derived.optimizer_steps_per_iteration") or 1.0))
    options = _options(values, law)
    length = options.get("decay_steps")
    warmup = _warmup(values, law, length if isinstance(length, int) else total)
    return None if warmup is None else ScheduleSettings(lr, style, min_lr, warmup, total, options)


def _options(values: Values, law: Law | None) -> dict[str, ConfigLeaf]:
    """Return what is set beside the fields of their own, by the name the law has for it."""
    given: dict[str, ConfigLeaf] = {
        name.removeprefix(OPTIONS).removeprefix("kwargs."): value.value
        for name, value in values.items()
        if name.startswith(OPTIONS) and value.value not in (None, ())
    }
    if law in (Law.VERL, Law.TRANSFORMERS):
        return given
    named = {
        _MEGATRON_SPELLING.get(k, k): v for k, v in given.items() if k not in _STATED_ELSEWHERE
    }
    unset = ("lr_warmup_iters", "lr_warmup_samples")
    return {k: v for k, v in named.items() if not (k in unset and v == 0)}


def _warmup(values: Values, law: Law | None, length: int | None) -> float | None:
    """Return the warmup; verl truncates the fraction to whole steps, TRL rounds up."""
    stated = _number(values, "actor.lr_warmup_steps")
    if stated is not None and stated > 0:
        return stated
    fraction = _number(values, "actor.lr_warmup_fraction")
    if not fraction:
        return 0.0 if stated is not None else fraction
    if not length:
        return None
    if law is Law.TRANSFORMERS:
        return float(math.ceil(fraction * length))
    return float(int(fraction * length)) if law in (Law.VERL, Law.MEGATRON) else fraction * length


def _value(values: Values, name: str) -> ConfigLeaf:
    found = values.get(name)
    return None if found is None else found.value


def _number(values: Values, name: str) -> float | None:
    value = _value(values, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _whole(values: Values, name: str) -> int | None:
    number = _number(values, name)
    return int(number) if number is not None and number > 0 and number.is_integer() else None
