"""Critic warmup delays the actor even where there is no critic.

Source: verl's trainers (0.6.1 and 0.9.0, V0 and V1) skip the actor's update while
trainer.critic_warmup exceeds the step, whatever the estimator.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report a warmup in a run without critic."""
    steps = run.number("critic.warmup_steps")
    if run.framework != "verl" or not run.is_off("critic.used") or not steps or steps <= 0:
        return
    yield problem(
        run,
        "critic_warmup",
        Severity.WARNING,
        Effect(Rung.OPTIMIZER),
        run.known("critic.warmup_steps", "critic.used"),
        Text(
            f"critic_warmup is {shown(steps)}, and there is no critic",
            f"critic_warmup 为 {shown(steps)}，但没有价值网络",
        ),
        Text(
            f"The actor is not updated before step {shown(steps)}: these steps cost time and train "
            "nothing, and the two runs' steps no longer correspond.",
            f"第 {shown(steps)} 步之前不更新 actor：这些步只耗时不训练，两次运行的步也不再对应。",
        ),
        Text("Set trainer.critic_warmup=0.", "设置 trainer.critic_warmup=0。"),
    )


_NONE = {"critic.used": False}
FIRES = (Example(_NONE | {"critic.warmup_steps": 20}),)
SILENT = (
    Example(_NONE | {"critic.warmup_steps": 0}),
    Example({"critic.used": True, "critic.warmup_steps": 20}),
)
