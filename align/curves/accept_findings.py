"""Say what acceptance decided, and why, where it did not pass."""

from __future__ import annotations

import math
from collections.abc import Iterator

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.curves.accept import HORIZON_STEPS, Acceptance
from align.curves.bootstrap import CONFIDENCE
from align.curves.criterion import SURE, Criterion, Outcome
from align.curves.onset import onset_of

_NAMES = {
    "absolute_error": Text("absolute error of the reward curve", "奖励曲线的绝对误差"),
    "convergence_error": Text("convergence error of the reward", "奖励的收敛误差"),
}
_OUTCOMES_ZH = {
    Outcome.PASS: "通过",
    Outcome.FAIL: "不通过",
    Outcome.UNDECIDED: "未定",
    Outcome.TOO_SHORT: "步数太少",
    Outcome.MISSING: "未记录",
}


def acceptance_findings(acceptance: Acceptance, first_step: int) -> Iterator[Finding]:
    """Yield an error with its symptom for a criterion that surely fails, a warning for others.

    A failure at 95 % alone is one of the two to five in a hundred that clean pairs have.
    """
    for criterion in acceptance.criteria:
        if criterion.surely_fails:
            yield _finding(acceptance, criterion, first_step, Severity.ERROR)
        elif criterion.outcome in (Outcome.FAIL, Outcome.UNDECIDED):
            yield _finding(acceptance, criterion, first_step, Severity.WARNING)


def criterion_name(criterion: Criterion) -> Text:
    """Name a criterion for readers."""
    return _NAMES[criterion.name]


def outcome_name(outcome: Outcome) -> Text:
    """Name an outcome for readers."""
    return Text(outcome.value, _OUTCOMES_ZH[outcome])


def coverage(acceptance: Acceptance) -> Text:
    """Say how much of what acceptance asks for was judged."""
    if acceptance.complete:
        return Text(
            f"judged over {acceptance.num_steps} steps (24 h or 500 steps reached)",
            f"判定范围为 {acceptance.num_steps} 步，已达到 24 小时或 500 步",
        )
    asked = int(HORIZON_STEPS.value)
    return Text(
        f"judged over the {acceptance.num_steps} steps both runs recorded; acceptance asks for "
        f"24 h or {asked} steps",
        f"判定范围为两侧共有的 {acceptance.num_steps} 步，验收要求 24 小时或 {asked} 步",
    )


def _finding(
    acceptance: Acceptance, criterion: Criterion, first_step: int, severity: Severity
) -> Finding:
    metric, failed = acceptance.metric, severity is Severity.ERROR
    onset = onset_of(metric, math.copysign(1.0, criterion.candidate - criterion.reference))
    name, size = criterion_name(criterion), f"{criterion.error:.1%}"
    is_close = criterion.outcome is Outcome.FAIL and not failed
    low, high = criterion.sure if is_close else (criterion.low, criterion.high)
    share = SURE.value if is_close else CONFIDENCE
    interval, limit = f"{low:.1%} – {high:.1%}", f"{criterion.limit.value:.0%}"
    above, zh = ("is above", "超过") if failed else ("is not decided against", "尚不能判定是否超过")
    covered = coverage(acceptance)
    return Finding(
        id=f"curves.reward.{criterion.name}",
        rung=Rung.CURVES,
        severity=severity,
        title=Text(
            f"The {name.en}, {size} ({100 * share:.0f} % interval {interval}), {above} the limit "
            f"of {limit}",
            f"{name.zh}为 {size}（{share:.0%} 区间 {interval}），{zh}限值 {limit}",
        ),
        reference=criterion.reference,
        candidate=criterion.candidate,
        evidence=metric.evidence(onset.step if failed else int(metric.steps[-1])),
        why=Text(
            f"Computed as {criterion.formula.en}; {covered.en}.",
            f"计算方法：{criterion.formula.zh}；{covered.zh}。",
        ),
        fix=_FIX_FAILED if failed else _FIX_COMPLETE if acceptance.complete else _FIX_LONGER,
        symptom=metric.symptom(
            onset.step, first_step, noise_sized=False, uncertainty=onset.uncertainty
        )
        if failed
        else None,
    )


_FIX_FAILED = Text(
    "Work through the earlier rungs of this report first: the reward is the last place where a "
    "difference shows. If all of them are aligned, repeat the reference to learn its own spread.",
    "先排查本报告中更早的环节：差异最后才会在奖励上显现。"
    "若这些环节全部一致，则重复一次参考运行，以了解其自身的波动。",
)
_REPEAT = Text(
    "Repeat the reference with another seed: what its repeats differ by is what chance alone does.",
    "换一个随机种子重复参考运行：两次参考之间的差异就是随机波动本身的大小。",
)
_FIX_LONGER = Text(
    f"Train both runs longer, up to {HORIZON_STEPS.value:.0f} steps: the interval narrows. "
    f"{_REPEAT.en}",
    f"两侧都训练更多步（至多 {HORIZON_STEPS.value:.0f} 步），区间会随之变窄。{_REPEAT.zh}",
)
_FIX_COMPLETE = Text(
    f"Acceptance judges no more steps than these, so longer training does not help. {_REPEAT.en}",
    f"验收只看这些步，继续训练没有帮助。{_REPEAT.zh}",
)
