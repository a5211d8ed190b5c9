"""Learning-rate laws of verl, Megatron and transformers, as plain numbers.

Each takes how far its scheduler has advanced; what one training step advances it by is another
question, which `declared_schedule` answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from align.core.errors import AlignError


class ScheduleError(AlignError, ValueError):
    """A schedule for which no learning rate is defined."""


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
    """Compute the learning rate of verl's FSDP workers after `step` scheduler steps.

    Args:
        step: 0 during the first update.
        lr: `optim.lr`, the greatest rate.
        style: "constant" or "cosine", `optim.lr_scheduler_type`.
        num_warmup_steps: linear from init_lr_ratio × lr; the first update has rate 0 by default.
        num_training_steps: `optim.total_training_steps`; past it cosine rises again.
        min_lr_ratio, num_cycles, init_lr_ratio, zero_indexed_step: of cosine alone.

    Raises:
        ScheduleError: unknown style.

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
    num_samples: float,
    *,
    lr: float,
    style: str = "linear",
    min_lr: float = 0.0,
    init_lr: float = 0.0,
    warmup_samples: float = 0,
    decay_samples: float,
    wsd_decay_samples: float | None = None,
    wsd_style: str = "exponential",
) -> float:
    """Compute Megatron's learning rate once its scheduler has counted num_samples.

    Args:
        num_samples: sum of the increments so far, in any unit; 0 during the first update.
        lr, min_lr, init_lr: `lr`, `min_lr`, `lr_warmup_init`.
        style: `lr_decay_style`: constant, linear, cosine, inverse-square-root or WSD.
        warmup_samples: in the same unit.
        decay_samples: where the decay ends, the warmup included; min_lr after it.
        wsd_decay_samples, wsd_style: length and shape (linear, cosine, exponential) of WSD's decay.

    Raises:
        ScheduleError: unknown style, or warmup not shorter than the decay.

    Source: megatron-core 0.12.1 `OptimizerParamScheduler.get_lr`.
    """
    if not 0 <= warmup_samples < decay_samples:
        raise ScheduleError(
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
    if style.lower() == "wsd":
        remaining = _wsd(num_samples, decay_samples, wsd_decay_samples, wsd_style)
    else:
        progress = (num_samples - warmup_samples) / (decay_samples - warmup_samples)
        remaining = _remaining(progress, style)
    return min_lr + (lr - min_lr) * remaining


def _wsd(count: float, end: float, length: float | None, style: str) -> float:
    """Return the part of the rate that is left: all of it until the last `length` samples."""
    if not length:
        raise _unknown("WSD without its decay", "lr_wsd_decay_iters")
    progress = max(0.0, count - (end - length)) / length
    if style == "exponential":
        return 2.0 * 0.5**progress - 1.0 if progress else 1.0
    return _remaining(progress, style)


def _remaining(progress: float, style: str) -> float:
    if style == "linear":
        return 1.0 - progress
    if style == "cosine":
        return 0.5 * (math.cos(math.pi * progress) + 1.0)
    raise _unknown(style, "constant, linear, cosine, inverse-square-root or WSD")


LOSS_DRIVEN = ("reduce_lr_on_plateau", "greedy")
"""transformers' schedulers whose rate follows from losses, not from the configuration."""


def transformers_lr(
    step: int,
    *,
    lr: float,
    style: str = "linear",
    num_warmup_steps: int = 0,
    num_training_steps: int = 0,
    options: Mapping[str, float | str | None] | None = None,
) -> float:
    """Compute the learning rate of transformers' Trainer, and so of TRL, after `step` updates.

    Args:
        step: optimizer steps done; 0 during the first update.
        lr: `learning_rate`.
        style: `lr_scheduler_type`.
        options: `lr_scheduler_kwargs`.

    Raises:
        ScheduleError: a style whose rate does not follow from these settings, or unknown options.

    Source: transformers 5.10 `get_scheduler`.
    """
    warm, left = num_warmup_steps, max(1, num_training_steps - num_warmup_steps)
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if style == "constant":
        return _closed(lr, given)
    if style == "warmup_stable_decay":
        return lr * _warmup_stable_decay(step, warm, num_training_steps, given)
    if style == "cosine_warmup_with_min_lr":
        return lr * _cosine_from_one(step, warm, left, lr, given)
    if step < warm:
        return lr * step / max(1, warm)
    progress = (step - warm) / left
    if style == "constant_with_warmup":
        return _closed(lr, given)
    if style == "linear":
        return _closed(lr * max(0.0, (num_training_steps - step) / left), given)
    if style == "cosine":
        return _closed(lr * max(0.0, _wave(progress, _take(given, "num_cycles", 0.5))), given)
    if style == "cosine_with_min_lr":
        floor = _floor(given, lr)
        wave = _wave(progress, _take(given, "num_cycles", 0.5))
        return _closed(lr * max(0.0, wave * (1 - floor) + floor), given)
    if style == "cosine_with_restarts":
        cycles = _take(given, "num_cycles", 1)
        wave = 0.5 * (1.0 + math.cos(math.pi * ((cycles * progress) % 1.0)))
        return _closed(0.0 if progress >= 1 else lr * max(0.0, wave), given)
    if style == "polynomial":
        end, power = _take(given, "lr_end", 1e-7), _take(given, "power", 1.0)
        return _closed(end + (lr - end) * max(0.0, 1 - progress) ** power, given)
    if style == "inverse_sqrt":
        timescale = _take(given, "timescale", warm or 10_000)
        return _closed(lr / math.sqrt((step + timescale - warm) / timescale), given)
    raise _unknown(style, "a scheduler of transformers that does not depend on the loss")


def _warmup_stable_decay(step: int, warm: int, total: int, given: dict[str, float | str]) -> float:
    decay = _take(given, "num_decay_steps", None)
    stable = _take(given, "num_stable_steps", total - warm - decay)
    floor, cycles = _take(given, "min_lr_ratio", 0.0), _take(given, "num_cycles", 0.5)
    rise, fall = given.pop("warmup_type", "linear"), given.pop("decay_type", "cosine")
    shapes: dict[str, Callable[[float], float]]
    if step < warm:
        shapes = {
            "linear": lambda x: x,
            "cosine": lambda x: 0.5 * (1.0 - math.cos(math.pi * x)),
            "1-sqrt": lambda x: 1.0 - math.sqrt(1.0 - x),
        }
        shape, progress, settled = rise, step / max(1, warm), False
    else:
        shapes = {
            "linear": lambda x: 1.0 - x,
            "cosine": lambda x: _wave(x, cycles),
            "1-sqrt": lambda x: 1.0 - math.sqrt(x),
        }
        shape, progress = fall, (step - warm - stable) / max(1, decay)
        settled = not 0 <= progress < 1
    if shape not in shapes:
        raise _unknown(str(shape), ", ".join(shapes))
    factor = shapes[str(shape)](progress) if not settled else float(progress < 0)
    return _closed(max(0.0, factor * (1.0 - floor) + floor), given)


def _cosine_from_one(
    step: int, warm: int, left: int, lr: float, given: dict[str, float | str]
) -> float:
    """Cosine whose steps are counted from 1, so that the first update has a rate above 0."""
    floor, cycles = _floor(given, lr), _take(given, "num_cycles", 0.5)
    first = given.pop("warmup_lr_rate", None)
    if step < warm:
        if first is None:
            return _closed((step + 1) / max(1, warm), given)
        first = float(first)
        return _closed(first + (1 - first) * step / max(1, warm - 1), given)
    wave = _wave((step - warm + 1) / left, cycles)
    return _closed(max(0.0, wave * (1 - floor) + floor), given)


def _wave(progress: float, cycles: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))


def _floor(given: dict[str, float | str], lr: float) -> float:
    """Return the least rate as a part of lr, from `min_lr` or `min_lr_rate`."""
    if "min_lr" in given:
        return _take(given, "min_lr", None) / lr
    return _take(given, "min_lr_rate", None)


def _take(given: dict[str, float | str], name: str, default: float | None) -> float:
    value = given.pop(name, default)
    if value is None:
        raise _unknown(f"a schedule without {name}", f"lr_scheduler_kwargs.{name}")
    return float(value)


def _closed(rate: float, unused: Mapping[str, object]) -> float:
    if unused:
        raise _unknown(f"option {', '.join(sorted(unused))}", "options of this scheduler alone")
    return rate


def _unknown(style: str, known: str) -> ScheduleError:
    return ScheduleError(
        where="learning-rate schedule",
        key="lr_decay_style",
        problem=f"{style!r} is not known",
        fix=f"use {known}",
    )
