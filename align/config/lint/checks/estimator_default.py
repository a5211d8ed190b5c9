"""verl's default estimator is gae, with a critic.

Source: verl's key table (adv_estimator defaults to gae).
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
    """Report groups of responses where nothing chooses the estimator."""
    n = run.number("rollout.n")
    if run.framework != "verl" or not run.by_default("advantage.estimator") or not n or n <= 1:
        return
    yield problem(
        run,
        "estimator_default",
        Severity.WARNING,
        Effect(Rung.ADVANTAGE),
        run.known("advantage.estimator", "rollout.n"),
        Text(
            f"{shown(n)} responses per prompt, but adv_estimator is not set: "
            f"{shown(run.value('advantage.estimator'))}",
            f"每个 prompt {shown(n)} 条回复，但未设置 adv_estimator："
            f"{shown(run.value('advantage.estimator'))}",
        ),
        Text(
            "Advantages come from a critic and not from the group; MindSpeed-RL's default is "
            "group_norm.",
            "advantage 来自价值网络而非组内比较；MindSpeed-RL 默认为 group_norm。",
        ),
        Text("Write algorithm.adv_estimator.", "写明 algorithm.adv_estimator。"),
    )


_GAE = {"advantage.estimator": "gae"}
FIRES = (Example({"rollout.n": 8}, defaults=_GAE),)
SILENT = (Example(_GAE | {"rollout.n": 8}), Example({"rollout.n": 1}, defaults=_GAE))
