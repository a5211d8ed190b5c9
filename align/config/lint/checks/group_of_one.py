"""Group-relative advantages need more than one response per prompt.

Source: verl's GRPO takes mean 0 and deviation 1 for a group of one, so the score itself is the
advantage; a filter on groups without spread drops every group of one.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_GROUPED = ("grpo", "rloo", "grpo_passk", "opo", "reinforce_plus_plus_baseline")


def check(run: OneRun) -> Iterator[Finding]:
    """Report groups of one, with and without group filtering."""
    if run.number("rollout.n") != 1:
        return
    filtered = run.is_on("reward.filter_groups")
    if not filtered and run.value("advantage.estimator") not in _GROUPED:
        return
    estimator = shown(run.value("advantage.estimator"))
    yield problem(
        run,
        "group_of_one",
        Severity.ERROR,
        Effect(Rung.ADVANTAGE),
        run.known("rollout.n", "reward.filter_groups" if filtered else "advantage.estimator"),
        Text("groups without spread are dropped, and n is 1", "丢弃无差异的分组，而 n 为 1")
        if filtered
        else Text(
            f"{estimator} with one response per prompt", f"{estimator} 每个 prompt 只有一条回复"
        ),
        Text(
            "A group of one has no spread, so every prompt is dropped and no batch fills.",
            "只有一条回复的分组没有差异，因此所有 prompt 都会被丢弃，batch 永远无法填满。",
        )
        if filtered
        else Text(
            "There is no baseline: the score itself becomes the advantage, so every rewarded token "
            "is pushed up and nothing is pushed down.",
            "没有基线：得分本身成为 advantage，有奖励的 token 只会被推高，没有任何 token 被压低。",
        ),
        Text(
            "Set the number of responses per prompt to 2 or more (usually 8 or 16).",
            "将每个 prompt 的回复数设为 2 或更多（通常为 8 或 16）。",
        ),
    )


FIRES = (
    Example({"rollout.n": 1, "advantage.estimator": "grpo"}, Severity.ERROR),
    Example(
        {"rollout.n": 1, "reward.filter_groups": True, "advantage.estimator": "gae"},
        Severity.ERROR,
    ),
)
SILENT = (
    Example({"rollout.n": 8, "advantage.estimator": "grpo", "reward.filter_groups": True}),
    Example({"rollout.n": 1, "advantage.estimator": "gae", "reward.filter_groups": False}),
)
