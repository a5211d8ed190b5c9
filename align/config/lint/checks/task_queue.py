"""Two settings that switch the task queue's second level off, or clash with it.

Source: Ascend's description of TASK_QUEUE_ENABLE (ASCEND_LAUNCH_BLOCKING=1 closes the queue);
verl's performance guide and MindSpeed-RL's runtime_env.yaml (level 2 and graph mode exclude each
other).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the queue's level with launch blocking and with graph mode."""
    level = run.fact("env.TASK_QUEUE_ENABLE")
    if level in (None, "0"):
        return
    if run.fact("env.ASCEND_LAUNCH_BLOCKING") == "1":
        yield problem(
            run,
            "task_queue.blocking",
            Severity.INFO,
            Effect(Rung.ENVIRONMENT, Strength.NONE),
            run.seen_facts("env.ASCEND_LAUNCH_BLOCKING", "env.TASK_QUEUE_ENABLE"),
            Text(
                f"TASK_QUEUE_ENABLE={level} has no effect: ASCEND_LAUNCH_BLOCKING=1",
                f"TASK_QUEUE_ENABLE={level} 不生效：ASCEND_LAUNCH_BLOCKING=1",
            ),
            Text(
                "Every operator is waited for. That helps to find an error and slows every step.",
                "每个算子都会同步等待：便于定位错误，但会拖慢每一步。",
            ),
            Text(
                "unset ASCEND_LAUNCH_BLOCKING, except while you look for an error.",
                "除定位错误期间外，unset ASCEND_LAUNCH_BLOCKING。",
            ),
        )
    if level == "2" and run.is_off("rollout.enforce_eager"):
        yield problem(
            run,
            "task_queue.graph",
            Severity.WARNING,
            Effect(Rung.ROLLOUT, Strength.NUMERIC),
            (*run.seen_facts("env.TASK_QUEUE_ENABLE"), *run.known("rollout.enforce_eager")),
            Text(
                "TASK_QUEUE_ENABLE=2 together with graph mode (enforce_eager: false)",
                "TASK_QUEUE_ENABLE=2 与图模式（enforce_eager: false）同时使用",
            ),
            Text(
                "ACL graphs and level 2 of the task queue exclude each other.",
                "ACLGraph 与 task queue Level 2 原理冲突，不能同时开启。",
            ),
            Text(
                "export TASK_QUEUE_ENABLE=1 with graph mode, 2 without.",
                "图模式下 export TASK_QUEUE_ENABLE=1，非图模式下用 2。",
            ),
        )


_TWO = {"env.TASK_QUEUE_ENABLE": "2"}
FIRES = (
    Example(facts=_TWO | {"env.ASCEND_LAUNCH_BLOCKING": "1"}, severity=Severity.INFO),
    Example({"rollout.enforce_eager": False}, facts=_TWO),
)
SILENT = (
    Example({"rollout.enforce_eager": True}, facts=_TWO | {"env.ASCEND_LAUNCH_BLOCKING": "0"}),
    Example({"rollout.enforce_eager": False}, facts={"env.TASK_QUEUE_ENABLE": "1"}),
)
