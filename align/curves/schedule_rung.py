"""Optimizer rung: the logged learning rate against the schedule each configuration declares.

The rate of a step follows from the configuration alone, so every step is a check, for one run as
for two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from align.core.config_value import EffectiveConfig
from align.core.finding import Finding, Severity, Side
from align.core.metric import MetricSeries
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.curves.logged_schedule import (
    LoggedSchedule,
    declared_rates,
    logged_rates,
    read_as_declared,
)
from align.curves.pair import FLOAT32_EPSILON
from align.curves.schedule_findings import departure, read_apart
from align.frameworks.declared_schedule import declared_schedule
from dumps.store.run_data import RunData

Resolve = Callable[[RunData], EffectiveConfig]


def compare(reference: RunData, candidate: RunData, effective: Resolve) -> RungResult:
    """Check both runs' logged learning rate against their own declared schedule.

    Args:
        effective: resolves a run's configuration (`align.config.normalise.effective`).
    """
    runs = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    read = [_read(side, run, effective) for side, run in runs]
    series = [logged for logged, _ in read]
    both = [laid for _, laid in read if laid is not None]
    lacking = [side for (side, _), logged in zip(runs, series, strict=True) if logged is None]
    if lacking:
        return _missing(lacking, _NO_RATE, both)
    logged = [s for s in series if s is not None]
    unknown = [side for (side, _), (_, laid) in zip(runs, read, strict=True) if laid is None]
    if unknown:
        return _same(logged, both) or _missing(unknown, _NO_SCHEDULE, both)
    return _judge(both[0], both[1])


def check(run: RunData, effective: Resolve, side: Side = Side.CANDIDATE) -> Finding | None:
    """Check one run's logged learning rate against the schedule its configuration declares.

    None where it follows, or where the log or the configuration does not tell.
    """
    _, laid = _read(side, run, effective)
    return None if laid is None or laid.follows else departure(laid, None, Severity.WARNING)


def _read(
    side: Side, run: RunData, effective: Resolve
) -> tuple[MetricSeries | None, LoggedSchedule | None]:
    series = logged_rates(run)
    if series is None and run.metrics.step_range is None:
        return None, None
    config = effective(run)
    declared = declared_schedule(config.values, config.framework, logged=True)
    if series is None or declared is None:
        return series, None
    return series, read_as_declared(side, series, declared)


def _same(logged: list[MetricSeries], known: list[LoggedSchedule]) -> RungResult | None:
    """Return aligned where every step both runs logged has the same rate.

    A schedule that both leave alike is worth knowing, and explains no difference.
    """
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
        *(departure(run, None, Severity.INFO) for run in known if not run.follows),
    )


def _judge(reference: LoggedSchedule, candidate: LoggedSchedule) -> RungResult:
    departing = [run for run in (reference, candidate) if not run.follows]
    if len(departing) == 1:
        run = departing[0]
        finding = departure(run, candidate if run is reference else reference, Severity.ERROR)
        return _result(RungStatus.DIVERGED, _sentence(finding.title), finding)
    if departing:
        return _same([reference.series, candidate.series], departing) or _result(
            RungStatus.UNDECIDED,
            _BOTH_DEPART,
            *(departure(run, None, Severity.WARNING) for run in departing),
        )
    at = _first_other_rate(reference, candidate)
    if at is None:
        return _result(RungStatus.ALIGNED, _aligned(reference, candidate))
    if reference.declared.inputs != candidate.declared.inputs:
        return _result(RungStatus.DIVERGED, _DECLARED_APART)  # the config rung says what differs
    finding = read_apart(reference, candidate, at)
    return _result(RungStatus.DIVERGED, _sentence(finding.title), finding)


def _first_other_rate(reference: LoggedSchedule, candidate: LoggedSchedule) -> int | None:
    """Return the first step for which the two declared schedules give other rates."""
    steps = np.intersect1d(reference.series.steps, candidate.series.steps)
    ours, theirs = (declared_rates(run.declared, steps) for run in (reference, candidate))
    lr = max(reference.declared.lr, candidate.declared.lr)
    other = np.abs(ours - theirs) > FLOAT32_EPSILON * lr
    return int(steps[np.argmax(other)]) if other.any() else None


def _aligned(reference: LoggedSchedule, candidate: LoggedSchedule) -> Text:
    ours, theirs = len(reference.series), len(candidate.series)
    return Text(
        "Both runs' logged learning rate is the declared schedule at every step "
        f"({ours} and {theirs} steps).",
        f"两次运行记录的学习率在每一步都与声明的曲线一致（{ours} 步与 {theirs} 步）。",
    )


def _missing(sides: list[Side], why: Text, known: list[LoggedSchedule]) -> RungResult:
    """Say what is missing; a run that leaves its own schedule is named even so."""
    side = sides[0].value if len(sides) == 1 else "both"
    findings = [departure(run, None, Severity.WARNING) for run in known if not run.follows]
    status = RungStatus.UNDECIDED if findings else RungStatus.MISSING
    return RungResult(
        name=Rung.OPTIMIZER,
        status=status,
        summary=_sentence(findings[0].title) if findings else why,
        findings=tuple(findings),
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
