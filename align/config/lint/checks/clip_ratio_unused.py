"""Clip ranges that are written and not read.

Source: verl's vanilla loss takes clip_ratio_low and clip_ratio_high where they are set;
MindSpeed-RL reads its own only with stage ray_dapo and clip_higher_enable.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number

_VERL = "actor_rollout_ref.actor.clip_ratio"
_VERL_DEFAULT = 0.2  # composed configurations state it too
_MINDSPEED = ("rl_config.clip_ratio_low", "rl_config.clip_ratio_high")


def check(run: OneRun) -> Iterator[Finding]:
    """Report a written clip range that differs from the one in effect."""
    counts = run.known("loss.clip_ratio_low", "loss.clip_ratio_high")
    keys = [_VERL] if _VERL in run.config.ignored else []
    keys += [key for key in _MINDSPEED if run.framework == "mindspeed_rl"]
    for key in keys:
        written = run.stated.get(key)
        relevant = [v for v in counts if key == _VERL or v.field.endswith(key[-4:])]
        if written is None or not relevant or not any(v.raw.key != key for v in relevant):
            continue
        if key == _VERL and number(written.value) == _VERL_DEFAULT:
            continue
        if all(number(written.value) == number(v.value) for v in relevant):
            continue
        real = ", ".join(f"{v.raw.key} = {shown(v.value)}" for v in relevant)
        yield problem(
            run,
            f"clip_ratio_unused.{key.rpartition('.')[2]}",
            Severity.WARNING,
            Effect(Rung.LOSS),
            (written, *relevant),
            Text(
                f"{key} is {shown(written.value)}, but nothing reads it",
                f"{key} 为 {shown(written.value)}，但不会被读取",
            ),
            Text(f"The loss clips by {real}.", f"损失按 {real} 裁剪。"),
            Text(
                "Set clip_ratio_low and clip_ratio_high to what you want, or leave them unset.",
                "将 clip_ratio_low 与 clip_ratio_high 设为所需取值，或不设置。",
            )
            if key == _VERL
            else Text(
                "Set rl_config.clip_ratio, or use stage ray_dapo with clip_higher_enable: true.",
                "设置 rl_config.clip_ratio，或使用 stage ray_dapo 与 clip_higher_enable: true。",
            ),
        )


_LOW_HIGH = {"loss.clip_ratio_low": 0.2, "loss.clip_ratio_high": 0.2}
FIRES = (
    Example(_LOW_HIGH, stated={_VERL: 0.3}, dead=(_VERL,)),
    Example(_LOW_HIGH, stated={"rl_config.clip_ratio_high": 0.28}, framework="mindspeed_rl"),
)
SILENT = (
    Example(_LOW_HIGH, stated={_VERL: 0.2}, dead=(_VERL,)),
    Example(_LOW_HIGH, stated={_VERL: 0.3}),
    Example(_LOW_HIGH | {"loss.clip_ratio_high": 0.28}, stated={_VERL: 0.2}, dead=(_VERL,)),
    Example(_LOW_HIGH),
)
