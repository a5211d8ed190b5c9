"""Findings about learning rates that are not what a configuration declares."""

from __future__ import annotations

import numpy as np

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.metric import MetricSeries
from align.core.rung import Rung
from align.core.text import Text
from align.curves.logged_schedule import METRIC, LoggedSchedule, what_it_does
from align.curves.pair import value_evidence

_SIDES = {
    Side.REFERENCE: Text("the reference's", "参考的"),
    Side.CANDIDATE: Text("the candidate's", "被测的"),
}


def departure(run: LoggedSchedule, other: LoggedSchedule | None, severity: Severity) -> Finding:
    """Name a run whose logged rates are not its declared ones.

    Args:
        other: the other run, where it follows its own schedule: then the code of this one is at
            fault. Without it the reading of the configuration may be, as for a fork.
        severity: INFO where both runs do the same, so that it explains no difference.
    """
    at = int(np.argmax(run.departs))
    step, value = int(run.series.steps[at]), float(run.series.values[at])
    least, greatest, count = float(run.least[at]), float(run.greatest[at]), int(run.departs.sum())
    declared = f"{least:.6g}" if least == greatest else f"{least:.6g} – {greatest:.6g}"
    whose, instead = _SIDES[run.side], what_it_does(run)
    lead = Text(f"{instead.en}: ", f"{instead.zh}：") if instead else Text("", "")
    values: dict[Side, float | None] = {run.side: value}
    if other is not None:
        values[other.side] = _value_at(other.series, step)
    return Finding(
        id="optimizer.lr_schedule",
        rung=Rung.OPTIMIZER,
        severity=severity,
        title=Text(
            f"{lead.en}{whose.en} learning rate leaves its own declared schedule at step {step}: "
            f"{value:.6g}, declared {declared} ({count} of {len(run.series)} steps)",
            f"{lead.zh}{whose.zh}学习率从第 {step} 步起偏离其自身声明的曲线：实际 {value:.6g}，"
            f"声明 {declared}（{len(run.series)} 步中有 {count} 步）",
        ),
        reference=values.get(Side.REFERENCE),
        candidate=values.get(Side.CANDIDATE),
        evidence=(
            value_evidence(run.series, step, run.side),
            *([value_evidence(other.series, step, other.side)] if other else []),
            *_declared_evidence(run, (least, greatest)),
        ),
        why=_why(instead, confirmed=other is not None),
        fix=Text(
            "Look where the scheduler is built and stepped: how often a training step advances it, "
            "and the warm-up and total steps it is given.",
            "检查调度器的构建与更新位置：每个训练步推进几次，传入的预热步数与总步数是多少。",
        ),
        mechanism=None
        if severity is Severity.INFO
        else Mechanism(Rung.OPTIMIZER, Strength.SEMANTIC),
    )


def _why(instead: Text | None, *, confirmed: bool) -> Text:
    said = Text(
        "The rate of a step follows from the configuration alone", "每步的学习率只取决于配置"
    )
    if confirmed:
        said = Text(
            f"{said.en}, and the other run's log follows its own, so the code here schedules "
            "otherwise than its configuration says.",
            f"{said.zh}，而另一侧的日志与其配置一致，因此这一侧的代码没有按其配置调度。",
        )
    else:
        said = Text(
            f"{said.en}: either the code schedules otherwise than the configuration says, or other "
            "settings than these were used.",
            f"{said.zh}：要么代码没有按配置调度，要么实际使用的不是这份配置。",
        )
    if instead is None:
        return said
    return Text(
        f"{said.en} What the log shows: {instead.en}.", f"{said.zh}日志显示：{instead.zh}。"
    )


def read_apart(reference: LoggedSchedule, candidate: LoggedSchedule, step: int) -> Finding:
    """Name two runs that follow one setting by two laws."""
    values = [_value_at(run.series, step) for run in (reference, candidate)]
    laws = f"{reference.declared.law.value}, {candidate.declared.law.value}"
    return Finding(
        id="optimizer.lr_schedule",
        rung=Rung.OPTIMIZER,
        severity=Severity.ERROR,
        title=Text(
            f"equal settings give other learning rates from step {step} on ({laws})",
            f"相同的配置从第 {step} 步起给出不同的学习率（{laws}）",
        ),
        reference=values[0],
        candidate=values[1],
        evidence=(
            value_evidence(reference.series, step, Side.REFERENCE),
            value_evidence(candidate.series, step, Side.CANDIDATE),
            *_declared_evidence(reference, ()),
            *_declared_evidence(candidate, ()),
        ),
        why=Text(
            "verl advances the schedule once a training step. MindSpeed-RL advances it with every "
            "optimizer step, by the sequences of its mini-batch, so one setting means two "
            "schedules.",
            "verl 每个训练步推进一次学习率曲线；MindSpeed-RL 在每次优化器更新时按 mini-batch "
            "的序列数推进，因此同样的配置对应两条曲线。",
        ),
        fix=Text(
            "Set warm-up and total steps so that both give the same rate at the quoted step.",
            "调整预热步数与总步数，使两侧在所引用的步上学习率相同。",
        ),
        mechanism=Mechanism(Rung.OPTIMIZER, Strength.SEMANTIC),
    )


def _declared_evidence(run: LoggedSchedule, expected: tuple[float, ...]) -> tuple[Evidence, ...]:
    stated = tuple(
        Evidence(
            source=value.raw.provenance.source,
            side=run.side,
            line=value.raw.provenance.line,
            key=value.raw.key,
            text=value.raw.provenance.text,
            values=() if isinstance(value.value, tuple) else (value.value,),
        )
        for value in run.declared.values
    )
    if not expected:
        return stated
    formula = f"{run.declared.law.value} schedule of these settings"
    return (Evidence(formula, run.side, key=METRIC, values=expected), *stated)


def _value_at(series: MetricSeries, step: int) -> float | None:
    found = np.flatnonzero(series.steps == step)
    return float(series.values[found[0]]) if len(found) else None
