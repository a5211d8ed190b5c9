"""Say what acceptance decided, and why, where it did not pass."""

from __future__ import annotations

import math
from collections.abc import Iterator

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.curves.accept import HORIZON_STEPS, Acceptance, Criterion, Outcome
from align.curves.diverge import onset_of

_NAMES = {
    "absolute_error": Text("absolute error of the reward curve", "奖励曲线绝对误差"),
    "convergence_error": Text("convergence error of the reward", "奖励收敛误差"),
}


def acceptance_findings(acceptance: Acceptance, first_step: int) -> Iterator[Finding]:
    """Yield an error with its symptom for a failed criterion, a warning for an undecided one."""
    for criterion in acceptance.criteria:
        if criterion.outcome is Outcome.FAIL:
            yield _finding(acceptance, criterion, first_step, Severity.ERROR)
        elif criterion.outcome is Outcome.UNDECIDED:
            yield _finding(acceptance, criterion, first_step, Severity.WARNING)


def criterion_name(criterion: Criterion) -> Text:
    """Name a criterion for readers."""
    return _NAMES[criterion.name]


def coverage(acceptance: Acceptance) -> Text:
    """Say how much of what acceptance asks for was judged."""
    if acceptance.complete:
        return Text(
            f"judged over {acceptance.num_steps} steps (24 h or 500 steps reached)",
            f"判定范围 {acceptance.num_steps} 步（已达到 24 小时或 500 步）",
        )
    asked = int(HORIZON_STEPS.value)
    return Text(
        f"judged over the {acceptance.num_steps} steps both runs recorded; acceptance asks for "
        f"24 h or {asked} steps",
        f"判定范围为两侧共有的 {acceptance.num_steps} 步；验收要求 24 小时或 {asked} 步",
    )


def _finding(
    acceptance: Acceptance, criterion: Criterion, first_step: int, severity: Severity
) -> Finding:
    metric, failed = acceptance.metric, severity is Severity.ERROR
    step = onset_of(metric, math.copysign(1.0, criterion.candidate - criterion.reference))
    name, size = criterion_name(criterion), f"{criterion.error:.1%}"
    interval, limit = f"{criterion.low:.1%} – {criterion.high:.1%}", f"{criterion.limit.value:.0%}"
    above, zh = ("is above", "超过") if failed else ("is not decided against", "无法判定是否满足")
    covered = coverage(acceptance)
    return Finding(
        id=f"curves.reward.{criterion.name}",
        rung=Rung.CURVES,
        severity=severity,
        title=Text(
            f"The {name.en}, {size} (95 % interval {interval}), {above} the limit of {limit}",
            f"{name.zh} {size}（95 % 区间 {interval}）{zh}限值 {limit}",
        ),
        reference=criterion.reference,
        candidate=criterion.candidate,
        evidence=metric.evidence(step if failed else int(metric.steps[-1])),
        why=Text(
            f"Computed as {criterion.formula.en}; {covered.en}.",
            f"计算方法：{criterion.formula.zh}；{covered.zh}。",
        ),
        fix=_FIX_FAILED if failed else _FIX_UNDECIDED,
        symptom=metric.symptom(step, first_step, noise_sized=False) if failed else None,
    )


_FIX_FAILED = Text(
    "Work through the earlier rungs of this report first: the reward is the last place where a "
    "difference shows. If all of them are aligned, repeat the reference to learn its own spread.",
    "先处理本报告中更早的环节：奖励是差异最后才显现的地方。"
    "若它们全部对齐，则重复一次参考运行以了解其自身波动。",
)
_FIX_UNDECIDED = Text(
    "Train both runs longer, up to 500 steps, or repeat the reference: the interval narrows.",
    "把两侧训练得更久（至多 500 步），或重复一次参考运行：区间会变窄。",
)
