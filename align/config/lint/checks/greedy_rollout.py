"""Groups of equal responses have no advantage.

Source: GRPO's formula; temperature 0 also divides the training logits by zero (verl and
MindSpeed-RL divide them by the sampling temperature).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_GROUPED = ("grpo", "rloo", "grpo_passk", "opo", "gpg", "reinforce_plus_plus_baseline")


def check(run: OneRun) -> Iterator[Finding]:
    """Report training rollouts without randomness."""
    zero, greedy = run.number("rollout.temperature") == 0, run.is_off("rollout.do_sample")
    if not (zero or greedy) or run.value("advantage.estimator") not in _GROUPED:
        return
    yield problem(
        run,
        "greedy_rollout",
        Severity.ERROR if zero else Severity.WARNING,
        Effect(Rung.ROLLOUT),
        run.known("rollout.temperature") if zero else run.known("rollout.do_sample"),
        Text("training responses are drawn greedily", "训练回复采用贪心解码"),
        Text(
            "All responses of a group are equal up to rounding, so every advantage is zero and "
            "nothing is learnt; training logits are divided by the same temperature.",
            "同组回复除舍入外完全相同，因此 advantage 恒为零，学不到任何东西；"
            "训练时 logits 也会除以同一温度。",
        )
        if zero
        else Text(
            "Engines that read do_sample return one response n times; asynchronous ones of verl "
            "take the temperature alone and sample all the same.",
            "读取 do_sample 的引擎会返回 n 条相同回复；verl 的异步引擎只看温度，仍会采样。",
        ),
        Text(
            "Set the sampling temperature of training above 0, usually 1, and do_sample to true.",
            "将训练的采样温度设为大于 0（通常为 1），并将 do_sample 设为 true。",
        ),
    )


_GRPO = {"advantage.estimator": "grpo"}
FIRES = (
    Example(_GRPO | {"rollout.temperature": 0}, Severity.ERROR),
    Example(_GRPO | {"rollout.temperature": 1.0, "rollout.do_sample": False}),
)
SILENT = (
    Example(_GRPO | {"rollout.temperature": 1.0, "rollout.do_sample": True}),
    Example(_GRPO | {"rollout.temperature": 0.2}),
    Example({"advantage.estimator": "gae", "rollout.temperature": 0}),
)
