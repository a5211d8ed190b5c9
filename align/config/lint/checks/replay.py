"""Replay of recorded rollouts fails silently.

Source: verl's skip manager: steps defaults to [], V0 and V1 trainers read different sections, a
missing folder means generation, no check of prompts; pull request 5556 and the skip manager's own
message (DAPO draws several times a step and is not supported).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_SECTIONS = {"rollout": "V0", "rollout_tq": "V1"}


def check(run: OneRun) -> Iterator[Finding]:
    """Report replay that will not happen, or not as meant."""
    if run.framework != "verl":
        return
    for section, trainer in _SECTIONS.items():
        name = f"rollout.replay.{section}"
        if not run.is_on(f"{name}.enable"):
            continue
        if f"{name}.steps" in run.config.values and not run.value(f"{name}.steps"):
            yield _finding(
                run,
                "steps",
                Severity.ERROR,
                (f"{name}.steps", f"{name}.enable"),
                Text(f"skip.{section} is on for no step", f"skip.{section} 已开启，但没有指定步"),
                Text(
                    "Its list of steps is empty: nothing is dumped and nothing is replayed, "
                    "without a message, and the run generates its own responses.",
                    "其 steps 为空：既不保存也不复用，且没有任何提示，运行会自行生成回复。",
                ),
                Text(
                    f"Set skip.{section}.steps to the steps, such as [1,2,3].",
                    f"将 skip.{section}.steps 设为所需的步，如 [1,2,3]。",
                ),
            )
        implementation = run.value("trainer.implementation")
        if isinstance(implementation, bool) and implementation is (trainer == "V0"):
            yield _finding(
                run,
                "trainer",
                Severity.ERROR,
                (f"{name}.enable", "trainer.implementation"),
                Text(
                    f"skip.{section} is of the {trainer} trainer, which this run does not use",
                    f"skip.{section} 属于 {trainer} 训练流程，而该运行并未使用它",
                ),
                Text(
                    "Nothing is dumped or replayed, and the two formats cannot be exchanged.",
                    "既不保存也不复用，且两种格式不能互换。",
                ),
                Text(
                    "Use skip.rollout_tq with trainer.use_v1=True, skip.rollout with False.",
                    "trainer.use_v1=True 时使用 skip.rollout_tq，False 时使用 skip.rollout。",
                ),
            )
        if run.is_on("reward.filter_groups"):
            yield _finding(
                run,
                "filter_groups",
                Severity.WARNING,
                (f"{name}.enable", "reward.filter_groups"),
                Text("replay together with group filtering", "复用 rollout 与分组过滤同时开启"),
                Text(
                    "Group filtering generates several times a step, a dump holds one batch a "
                    "step: the same responses come back for other prompts.",
                    "分组过滤每步会多次生成，而每步只保存一个 batch："
                    "相同的回复会配到其他 prompt 上。",
                ),
                Text("Switch filter_groups off for replay.", "复用时关闭 filter_groups。"),
            )


def _finding(
    run: OneRun,
    part: str,
    severity: Severity,
    seen: tuple[str, ...],
    title: Text,
    why: Text,
    fix: Text,
) -> Finding:
    effect = Effect(Rung.ROLLOUT)
    return problem(run, f"replay.{part}", severity, effect, run.known(*seen), title, why, fix)


_V1: Settings = {
    "rollout.replay.rollout_tq.enable": True,
    "rollout.replay.rollout_tq.steps": (1, 2),
    "trainer.implementation": True,
}
FIRES = (
    Example(_V1 | {"rollout.replay.rollout_tq.steps": ()}, Severity.ERROR),
    Example(_V1 | {"trainer.implementation": False}, Severity.ERROR),
    Example(_V1 | {"reward.filter_groups": True}),
)
SILENT = (
    Example(_V1),
    Example(
        {"rollout.replay.rollout_tq.enable": False, "rollout.replay.rollout_tq.steps": ()},
    ),
)
