"""The learning rate of every training step, and how those of two runs differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.config.derive.quantity import Values, derived, exact
from align.core.config_value import EffectiveConfig, EffectiveValue
from align.core.text import Text
from align.frameworks.declared_schedule import DeclaredSchedule, declared_schedule

FloatArray = npt.NDArray[np.float64]

LONGEST = 1_000_000
"""More training steps than any run has; a larger total is a slip of the pen."""

_SAMPLES = 16
_ROUNDING = 2.0**-40  # of the greatest rate: two laws may round one formula otherwise


def learning_rates(values: Values, framework: str | None = None) -> FloatArray | None:
    """Return the rate that the first update of every training step uses.

    Returns:
        float64 [total steps]; None where the schedule or its length is not known.
    """
    schedule = declared_schedule(values, framework)
    if schedule is None or schedule.total is None or schedule.total > LONGEST:
        return None
    return _rates(schedule, schedule.total)


def course(values: Values, framework: str | None) -> dict[str, EffectiveValue]:
    """Derive warmup and decay in training steps, and the course in words."""
    schedule = declared_schedule(values, framework)
    if schedule is None:
        return _warmup_as_set(values)
    inputs = tuple(value.field for value in schedule.values)
    law = f"{schedule.law.value} schedule of these settings"
    made: dict[str, float | int | str] = {"derived.warmup_steps": exact(schedule.warmup)}
    if schedule.decay is not None:
        made["derived.decay_steps"] = exact(schedule.decay)
    made["derived.learning_rate_course"] = _in_words(schedule)
    return {name: derived(name, value, inputs, law, values) for name, value in made.items()}


@dataclass(frozen=True, slots=True)
class CourseDifference:
    """Two learning-rate courses, step by step.

    Args:
        num_steps: training steps both have.
        first_step: 1-based, the first with another rate; None where there is none.
        greatest: largest difference of the rates.
        same_settings: both declare the same; only what advances the scheduler differs.
        said: what to tell a reader.
    """

    num_steps: int
    first_step: int | None
    greatest: float
    same_settings: bool
    said: Text


def course_difference(
    reference: EffectiveConfig, candidate: EffectiveConfig
) -> CourseDifference | None:
    """Replay both schedules; None where one of them, or both lengths, are not known."""
    schedules = [declared_schedule(c.values, c.framework) for c in (reference, candidate)]
    if schedules[0] is None or schedules[1] is None:
        return None
    known = [s.total for s in schedules if s is not None and s.total is not None]
    if not known or min(known) > LONGEST:
        return None
    steps = min(known)
    ours, theirs = _rates(schedules[0], steps), _rates(schedules[1], steps)
    gap = np.abs(ours - theirs)
    other = gap > _ROUNDING * max(schedules[0].lr, schedules[1].lr)
    same = schedules[0].inputs == schedules[1].inputs
    if not other.any():
        return CourseDifference(steps, None, 0.0, same, _equal(steps))
    first, greatest = int(np.argmax(other)) + 1, float(gap.max())
    said = [_differ(steps, first, greatest, int(np.argmax(gap)) + 1)]
    sides = (Text("reference", "参考"), Text("candidate", "被测"))
    for side, schedule, rates in zip(sides, schedules, (ours, theirs), strict=True):
        said += _of_one(side, schedule, rates)
    return CourseDifference(
        steps,
        first,
        greatest,
        same,
        Text(" ".join(text.en for text in said), "".join(text.zh for text in said)),
    )


def _rates(schedule: DeclaredSchedule, steps: int) -> FloatArray:
    return np.array([schedule.after(step) for step in range(steps)], np.float64)


def _in_words(schedule: DeclaredSchedule) -> str:
    """Write the course as rates at chosen steps, so that equal courses read alike.

    Schedules are smooth between their corners: two that agree on the first steps and at every
    sixteenth of the run are equal.
    """
    if schedule.is_constant or schedule.total is None:
        warmup = "" if schedule.is_constant else f" after a warmup of {schedule.warmup:g} steps"
        return f"{schedule.lr:.6g} at every step{warmup}"
    total = schedule.total
    steps = {1, 2, 3, *(1 + (total - 1) * k // _SAMPLES for k in range(_SAMPLES + 1))}
    wanted = sorted(step for step in steps if step <= total)
    rates = [schedule.after(step - 1) for step in wanted]
    if len(set(rates)) == 1:
        return f"{rates[0]:.6g} at every step"
    # Nudged off exact ties of the sixth digit, which two laws may round apart.
    shown = [f"{rate * (1 + 1e-11):.6g}" for rate in rates]
    return ", ".join(f"{rate} at step {step}" for step, rate in zip(wanted, shown, strict=True))


def _warmup_as_set(values: Values) -> dict[str, EffectiveValue]:
    """Return the warmup where it is set in steps, whatever the rest of the schedule."""
    name, stated = "derived.warmup_steps", values.get("actor.lr_warmup_steps")
    if stated is None:
        return {}
    return {name: derived(name, stated.value, (stated.field,), "as set", values)}


def _equal(steps: int) -> Text:
    return Text(
        f"The learning rate is the same at all {steps} steps.",
        f"学习率在全部 {steps} 步上相同。",
    )


def _differ(steps: int, first: int, greatest: float, at: int) -> Text:
    return Text(
        f"Over {steps} steps the learning rates first differ at step {first}; the largest gap is "
        f"{greatest:.3g}, at step {at}.",
        f"在 {steps} 步中，学习率从第 {first} 步起不同；最大差为 {greatest:.3g}（第 {at} 步）。",
    )


def _of_one(side: Text, schedule: DeclaredSchedule | None, rates: FloatArray) -> list[Text]:
    """Say of one run that its rate ends at 0, and that its decay ends before the run does."""
    assert schedule is not None
    said = []
    nonzero = np.flatnonzero(rates)
    zeros = len(rates) - (int(nonzero[-1]) + 1 if len(nonzero) else 0)
    if zeros > 1:
        said.append(
            Text(
                f"The {side.en}'s learning rate is 0 for the last {zeros} of {len(rates)} steps.",
                f"{side.zh}的学习率在 {len(rates)} 步中的最后 {zeros} 步为 0。",
            )
        )
    total, decay = schedule.total, schedule.decay
    if total is not None and decay is not None and round(decay) != total:
        said.append(
            Text(
                f"The {side.en} declares {schedule.style} over {total} steps and decays over "
                f"{decay:g}.",
                f"{side.zh}声明 {schedule.style} 覆盖 {total} 步，实际在 {decay:g} 步内衰减。",
            )
        )
    return said
