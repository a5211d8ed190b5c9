"""Rates as functions of a scheduler's count, from the settings of one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from align.core.config_value import ConfigLeaf
from align.frameworks.schedules import LOSS_DRIVEN, megatron_lr, transformers_lr, verl_lr


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """What every law is made from.

    Args:
        style: as the configuration spells it.
        warmup, total: in what the scheduler counts; total is None where it is not known.
        options: what is set beside them, by the law's own names.
    """

    lr: float
    style: str
    min_lr: float
    warmup: float
    total: int | None
    options: Mapping[str, ConfigLeaf]

    @property
    def length(self) -> float:
        """The total, infinite where it is not known."""
        return math.inf if self.total is None else self.total


Rate = tuple[Callable[[float], float], "float | None"]
"""The rate at a count, and the count at which its decay ends; None where it has none."""


def verl_rate(given: ScheduleSettings) -> Rate | None:
    """Make the rate of verl's FSDP workers; None where a setting is not known."""
    options = dict(given.options)
    cycles, zero = options.pop("num_cycles", 0.5), options.pop("zero_indexed_step", True)
    if options or given.style not in ("constant", "cosine") or not isinstance(cycles, int | float):
        return None
    length = given.total or 0
    floor = given.min_lr / given.lr

    def rate(step: float) -> float:
        return verl_lr(
            int(step),
            lr=given.lr,
            style=given.style,
            num_warmup_steps=int(given.warmup),
            num_training_steps=length,
            min_lr_ratio=floor,
            num_cycles=float(cycles),
            zero_indexed_step=bool(zero),
        )

    return rate, None if given.style == "constant" else float(length)


def megatron_rate(given: ScheduleSettings) -> Rate | None:
    """Make Megatron's rate; None where a setting is not known."""
    options = dict(given.options)
    init, length = options.pop("warmup_init", 0.0), options.pop("decay_steps", given.length)
    last, shape = options.pop("wsd_decay_steps", None), options.pop("wsd_decay_style", "")
    numbers = [value for value in (init, length, last) if value is not None]
    if options or not all(isinstance(value, int | float) for value in numbers):
        return None
    end = float(length)  # type: ignore[arg-type]
    start = float(init)  # type: ignore[arg-type]
    wsd = None if last is None else float(last)  # type: ignore[arg-type]
    if not given.warmup < end:
        return None

    def rate(count: float) -> float:
        return megatron_lr(
            count,
            lr=given.lr,
            style=given.style,
            min_lr=given.min_lr,
            init_lr=start,
            warmup_samples=given.warmup,
            decay_samples=end,
            wsd_decay_samples=wsd,
            wsd_style=str(shape or "exponential"),
        )

    return rate, None if given.style == "constant" else end


def transformers_rate(given: ScheduleSettings) -> Rate | None:
    """Make transformers' rate; None where it follows from losses.

    TRL's tables name constant_with_warmup and cosine_with_min_lr by their shape alone.
    """
    style, options = given.style, dict(given.options)
    if style == "constant":
        style = "constant_with_warmup"
    if style == "cosine" and given.min_lr:
        style = "cosine_with_min_lr"
    if style == "cosine_with_min_lr":
        options = {k: v for k, v in options.items() if k not in ("min_lr", "min_lr_rate")}
        options["min_lr"] = given.min_lr
    if style in LOSS_DRIVEN or not all(isinstance(v, int | float | str) for v in options.values()):
        return None

    def rate(step: float) -> float:
        return transformers_lr(
            int(step),
            lr=given.lr,
            style=style,
            num_warmup_steps=int(given.warmup),
            num_training_steps=given.total or 0,
            options=options,  # type: ignore[arg-type]
        )

    return rate, None if style == "constant_with_warmup" else float(given.length)
