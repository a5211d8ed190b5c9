"""Optimizer rung: the logged learning rate against the schedule each configuration declares.

The rate of a step follows from the configuration alone, so every step is a check. A log does not
tell whether it read the rate before or after stepping the scheduler (verl has done both), or
averaged it over a step's updates, so a logged rate is right where it lies between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from align.core.config_value import EffectiveConfig
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.metric import MetricSeries
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.curves.declared_schedule import DeclaredSchedule, Formulas, declared_schedule
from align.curves.pair import FLOAT32_EPSILON, BoolArray, FloatArray, IntArray, value_evidence
from dumps.store.run_data import RunData

METRIC = "actor/lr"


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSchedule:
    """One run's logged rates beside what its configuration declares.

    Args:
        series: as logged, finite values alone.
        declared: its schedule.
        least, greatest: float64 [n], the declared rates from before to after each logged step.
        departs: bool [n].
    """

    side: Side
    series: MetricSeries
    declared: DeclaredSchedule
    least: FloatArray
    greatest: FloatArray
    departs: BoolArray

    @property
    def follows(self) -> bool:
        """Whether every logged rate is the declared one."""
        return not self.departs.any()


def compare(
    reference: RunData,
    candidate: RunData,
    effective: Callable[[RunData], EffectiveConfig],
    formulas: Formulas,
) -> RungResult:
    """Check both runs' logged learning rate against their own declared schedule.

    Args:
        effective: resolves a run's configuration (`align.config.normalise.effective`).
        formulas: the schedules of both frameworks (`align.objective.schedules`).
    """
    sides = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    series = [_logged(run) for _, run in sides]
    lacking = [side.value for (side, _), s in zip(sides, series, strict=True) if s is None]
    if lacking:
        return _missing(lacking, _NO_RATE)
    logged = [s for s in series if s is not None]
    schedules = [declared_schedule(effective(run), formulas) for _, run in sides]
    unknown = [side.value for (side, _), s in zip(sides, schedules, strict=True) if s is None]
    if unknown:
        return _same(logged) or _missing(unknown, _NO_SCHEDULE)
    both = [
        read_as_declared(side, s, schedule)
        for (side, _), s, schedule in zip(sides, logged, schedules, strict=True)
        if schedule is not None
    ]
    return _judge(both[0], both[1])


def read_as_declared(
    side: Side, series: MetricSeries, declared: DeclaredSchedule
) -> LoggedSchedule:
    """Lay a schedule beside the logged rates."""
    offset = 1 if int(series.steps[0]) == 0 else 0  # steps numbered from 0
    rates = np.array([declared.during(int(step) + offset) for step in series.steps], np.float64)
    least, greatest = rates[:, 0], rates[:, 1]
    tolerance = np.maximum(series.resolution, FLOAT32_EPSILON * declared.lr)
    departs = (series.values < least - tolerance) | (series.values > greatest + tolerance)
    return LoggedSchedule(side, series, declared, least, greatest, departs)


def _rates(declared: DeclaredSchedule, steps: IntArray) -> FloatArray:
    """float64 [n]: the declared rate after so many training steps."""
    return np.array([declared.after(int(step)) for step in steps], np.float64)


def _logged(run: RunData) -> MetricSeries | None:
    series = run.metrics.get(METRIC)
    if series is None or not (finite := np.isfinite(series.values)).any():
        return None
    arrays = (series.steps, series.values, series.resolution, series.lines)
    kept = (array[finite] for array in arrays)
    return MetricSeries(series.name, series.spelling, series.source, *kept)


def _same(logged: list[MetricSeries]) -> RungResult | None:
    """Return aligned where every step both runs logged has the same rate."""
    a, b = logged
    steps, at_a, at_b = np.intersect1d(a.steps, b.steps, return_indices=True)
    scale = np.maximum(np.abs(a.values[at_a]), np.abs(b.values[at_b]))
    printed = np.maximum(a.resolution[at_a], b.resolution[at_b])
    gap = np.abs(a.values[at_a] - b.values[at_b])
    if not len(steps) or (gap > np.maximum(printed, FLOAT32_EPSILON * scale)).any():
        return None
    return _result(
        RungStatus.ALIGNED,
        Text(
            f"The learning rate is equal at all {len(steps)} common steps.",
            f"学习率在全部 {len(steps)} 个共同步上相同。",
        ),
    )


def _judge(reference: LoggedSchedule, candidate: LoggedSchedule) -> RungResult:
    departing = [run for run in (reference, candidate) if not run.follows]
    if len(departing) == 1:
        run = departing[0]
        finding = _departs(run, candidate if run is reference else reference)
        return _result(RungStatus.DIVERGED, _sentence(finding.title), finding)
    if departing:
        return _same([reference.series, candidate.series]) or _result(
            RungStatus.UNDECIDED, _BOTH_DEPART
        )
    at = _first_other_rate(reference, candidate)
    if at is None:
        return _result(RungStatus.ALIGNED, _aligned(reference, candidate))
    if reference.declared.inputs != candidate.declared.inputs:
        return _result(RungStatus.DIVERGED, _DECLARED_APART)  # the config rung says what differs
    finding = _read_apart(reference, candidate, at)
    return _result(RungStatus.DIVERGED, _sentence(finding.title), finding)


def _first_other_rate(reference: LoggedSchedule, candidate: LoggedSchedule) -> int | None:
    """Return the first step for which the two declared schedules give other rates."""
    steps = np.intersect1d(reference.series.steps, candidate.series.steps)
    ours, theirs = (_rates(run.declared, steps) for run in (reference, candidate))
    lr = max(reference.declared.lr, candidate.declared.lr)
    other = np.abs(ours - theirs) > FLOAT32_EPSILON * lr
    return int(steps[np.argmax(other)]) if other.any() else None


def _departs(run: LoggedSchedule, other: LoggedSchedule) -> Finding:
    at = int(np.argmax(run.departs))
    step, value = int(run.series.steps[at]), float(run.series.values[at])
    least, greatest, count = float(run.least[at]), float(run.greatest[at]), int(run.departs.sum())
    declared = f"{least:.6g}" if least == greatest else f"{least:.6g} – {greatest:.6g}"
    side_zh = "参考" if run.side is Side.REFERENCE else "被测"
    values = {run.side: value, other.side: _value_at(other.series, step)}
    return Finding(
        id="optimizer.lr_schedule",
        rung=Rung.OPTIMIZER,
        severity=Severity.ERROR,
        title=Text(
            f"the {run.side.value}'s learning rate leaves its own declared schedule at step "
            f"{step}: {value:.6g}, declared {declared} ({count} of {len(run.series)} steps)",
            f"{side_zh}的学习率从第 {step} 步起偏离其自身声明的曲线：实际 {value:.6g}，"
            f"声明 {declared}（{len(run.series)} 步中有 {count} 步）",
        ),
        reference=values[Side.REFERENCE],
        candidate=values[Side.CANDIDATE],
        evidence=(
            value_evidence(run.series, step, run.side),
            value_evidence(other.series, step, other.side),
            *_declared_evidence(run, (least, greatest)),
        ),
        why=_why(run),
        fix=Text(
            "Look where the scheduler is built and stepped: how often a training step advances it, "
            "and the warm-up and total steps it is given.",
            "检查调度器的构建与更新位置：每个训练步推进几次，传入的预热步数与总步数是多少。",
        ),
        mechanism=Mechanism(Rung.OPTIMIZER, Strength.SEMANTIC),
    )


def _why(run: LoggedSchedule) -> Text:
    """Say what the other run does right, and the step count that would explain the rates."""
    said = Text(
        "The rate of a step follows from the configuration alone, and the other run's log follows "
        "its own, so the code here schedules otherwise than its configuration says.",
        "每步的学习率只取决于配置，而另一侧的日志与其配置一致，因此这一侧的代码没有按其配置调度。",
    )
    updates = run.declared.updates
    if updates is None or updates < 2:
        return said
    counted = _rates(run.declared, run.series.steps * updates)
    tolerance = np.maximum(run.series.resolution, FLOAT32_EPSILON * run.declared.lr)
    if (np.abs(run.series.values - counted) > tolerance).any():
        return said
    return Text(
        f"{said.en} The logged rates are the schedule advanced {updates} times a training step, "
        "once an optimizer step.",
        f"{said.zh}日志中的学习率等于该曲线在每个训练步推进 {updates} 次"
        "（每次优化器更新推进一次）。",
    )


def _read_apart(reference: LoggedSchedule, candidate: LoggedSchedule, step: int) -> Finding:
    values = [_value_at(run.series, step) for run in (reference, candidate)]
    laws = f"{reference.declared.law}, {candidate.declared.law}"
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
            "verl advances the schedule once a training step; Megatron advances it by the samples "
            "of every optimizer step, so one setting means two schedules.",
            "verl 每个训练步推进一次学习率曲线；Megatron 按每次优化器更新的样本数推进，"
            "因此同样的配置对应两条曲线。",
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
    formula = f"{run.declared.law} schedule of these settings"
    return (Evidence(formula, run.side, key=METRIC, values=expected), *stated)


def _value_at(series: MetricSeries, step: int) -> float | None:
    found = np.flatnonzero(series.steps == step)
    return float(series.values[found[0]]) if len(found) else None


def _aligned(reference: LoggedSchedule, candidate: LoggedSchedule) -> Text:
    ours, theirs = len(reference.series), len(candidate.series)
    return Text(
        "Both runs' logged learning rate is the declared schedule at every step "
        f"({ours} and {theirs} steps).",
        f"两次运行记录的学习率在每一步都与声明的曲线一致（{ours} 步与 {theirs} 步）。",
    )


def _missing(sides: list[str], why: Text) -> RungResult:
    side = sides[0] if len(sides) == 1 else "both"
    return RungResult(
        name=Rung.OPTIMIZER,
        status=RungStatus.MISSING,
        summary=why,
        missing=(missing_artifact(Rung.OPTIMIZER, side),),
    )


def _result(status: RungStatus, summary: Text, *findings: Finding) -> RungResult:
    return RungResult(Rung.OPTIMIZER, status, summary, findings)


def _sentence(title: Text) -> Text:
    return Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。")


_NO_RATE = Text("Not compared: needs the logged learning rate.", "未比较：需要日志中的学习率。")
_NO_SCHEDULE = Text(
    "Not compared: the configuration does not tell the whole learning-rate schedule.",
    "未比较：配置没有给出完整的学习率曲线。",
)
_BOTH_DEPART = Text(
    "Neither run's learning rate follows the schedule its configuration declares.",
    "两次运行的学习率都没有遵循各自配置声明的曲线。",
)
_DECLARED_APART = Text(
    "Each run follows the schedule its configuration declares; these schedules differ.",
    "两次运行各自遵循其配置声明的学习率曲线，但两条曲线不同。",
)
