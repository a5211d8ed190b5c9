"""Megatron's lr_decay_steps counts from step 0, warmup included.

Source: AReaL pull request 1289: with the warmup taken off, the rate reached 0 at step 198 of 220
and stayed there for 22 steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report a decay that ends before training does."""
    steps = run.numbers("actor.lr_options.decay_steps", "trainer.total_steps")
    schedule = run.value("actor.lr_schedule")
    if steps is None or not 0 < steps[0] < steps[1] or schedule in (None, "constant"):
        return
    yield problem(
        run,
        "decay_steps",
        Severity.WARNING,
        Effect(Rung.OPTIMIZER, signature=("actor/lr",)),
        run.known("actor.lr_options.decay_steps", "trainer.total_steps", "actor.lr_schedule"),
        Text(
            f"the learning rate reaches its minimum at step {shown(steps[0])} of {shown(steps[1])}",
            f"学习率在第 {shown(steps[0])} 步（共 {shown(steps[1])} 步）就降到最小值",
        ),
        Text(
            f"lr_decay_steps is absolute and includes the warmup: the last "
            f"{shown(steps[1] - steps[0])} steps train at min_lr.",
            f"lr_decay_steps 为绝对步数且包含预热："
            f"最后 {shown(steps[1] - steps[0])} 步以 min_lr 训练。",
        ),
        Text(
            f"Set lr_decay_steps to {shown(steps[1])}, or leave it unset.",
            f"将 lr_decay_steps 设为 {shown(steps[1])}，或不设置。",
        ),
    )


_LINEAR: Settings = {"actor.lr_schedule": "linear", "trainer.total_steps": 220}
FIRES = (Example(_LINEAR | {"actor.lr_options.decay_steps": 198}),)
SILENT = (
    Example(_LINEAR | {"actor.lr_options.decay_steps": 220}),
    Example(_LINEAR | {"actor.lr_options.decay_steps": None}),
    Example(_LINEAR | {"actor.lr_options.decay_steps": 198, "actor.lr_schedule": "constant"}),
)
