"""What `align watch` saw while the candidate trained, beside the curves of the finished run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from align.core.figure import Cell, Column, Table
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.rung import Rung, RungResult
from align.core.text import Text
from align.core.watch_record import Alarm, Trace, WatchRecord


def with_watch(result: RungResult, records: Sequence[WatchRecord]) -> RungResult:
    """Add a table and a note for each alarm; the status stays what the curves say.

    The whole run is judged by its curves; the watch saw them one step at a time, so its alarm is
    news of when it could be known, not another judgement.
    """
    if not records:
        return result
    onsets = {pair.metric: pair.onset for pair in result.curves if pair.onset is not None}
    findings = tuple(
        _finding(record, alarm, onsets.get(alarm.metric))
        for record in records
        for alarm in record.alarms
    )
    return replace(
        result,
        findings=(*result.findings, *findings),
        tables=(*result.tables, _table(records)),
    )


def _table(records: Sequence[WatchRecord]) -> Table:
    return Table(
        id="curves.watch",
        title=Text("What the live watch saw", "训练期间的实时监视"),
        columns=(
            Column("metric", Text("metric", "指标")),
            Column("followed", Text("steps followed", "已跟踪的步")),
            Column("farthest", Text("farthest out, standard errors", "最大偏离（标准误）"), True),
            Column("at", Text("at step", "所在步"), numeric=True),
            Column("limit", Text("alarm beyond", "告警界限"), numeric=True),
            Column("size", Text("size there, 1 matters", "该处大小（1 为需关注）"), numeric=True),
            Column("alarm", Text("alarm", "告警")),
            Column("reference", Text("reference", "参考")),
            Column("source", Text("file", "文件")),
        ),
        rows=tuple(row for record in records for row in _rows(record)),
    )


def _rows(record: WatchRecord) -> Iterator[tuple[Cell, ...]]:
    alarms = {alarm.metric: alarm for alarm in record.alarms}
    traces = {trace.metric: trace for trace in record.traces}
    for metric in [*traces, *(name for name in alarms if name not in traces)]:
        yield (
            metric,
            _followed(record),
            *_farthest(traces.get(metric)),
            _alarm(alarms.get(metric)),
            record.reference,
            record.source,
        )
    if not alarms and not traces:
        yield (_NOTHING, _followed(record), None, None, None, None, "", record.reference, "")


def _followed(record: WatchRecord) -> Text:
    if record.step is None:
        return Text("none", "无")
    return Text(f"{record.step} of {record.last_step}", f"{record.step} / {record.last_step}")


def _farthest(trace: Trace | None) -> tuple[Cell, Cell, Cell, Cell]:
    """Return the largest deviation among the steps whose difference matters, else among all."""
    if trace is None or not trace.steps:
        return None, None, None, None
    deviations, sizes = np.array(trace.deviations), np.array(trace.sizes)
    matters = sizes >= 1
    at = int(np.argmax(np.where(matters, deviations, -1.0) if matters.any() else deviations))
    return (
        round(float(deviations[at]), 2),
        trace.steps[at],
        round(trace.limit, 2),
        round(float(sizes[at]), 2),
    )


def _alarm(alarm: Alarm | None) -> Text:
    if alarm is None:
        return Text("none", "无")
    return Text(f"step {alarm.step}", f"第 {alarm.step} 步")


def _finding(record: WatchRecord, alarm: Alarm, onset: tuple[int, int] | None) -> Finding:
    metric = alarm.metric
    known = Text("", "")
    if onset is not None:
        late = alarm.step - onset[0]
        known = Text(
            f" The curves of the whole run date its onset to step {onset[0]}: the watch called it "
            f"{late} steps later.",
            f"整条曲线判定其起点为第 {onset[0]} 步：监视在其后 {late} 步发出告警。",
        )
    return Finding(
        id=f"curves.watch.{metric.replace('/', '.')}",
        rung=Rung.CURVES,
        severity=Severity.INFO,
        title=Text(
            f"align watch called {metric} at step {alarm.step} while the job ran: "
            f"{alarm.reference:.4g} → {alarm.candidate:.4g} since step {alarm.since}",
            f"训练期间 align watch 在第 {alarm.step} 步对 {metric} 告警："
            f"自第 {alarm.since} 步起 {alarm.reference:.4g} → {alarm.candidate:.4g}",
        ),
        reference=alarm.reference,
        candidate=alarm.candidate,
        evidence=(Evidence(record.source, Side.CANDIDATE, key=metric, values=(alarm.deviation,)),),
        why=Text(
            f"Watched against {record.reference}; the difference was {alarm.deviation:.1f} "
            f"standard errors.{known.en}",
            f"以 {record.reference} 为参考；差异为 {alarm.deviation:.1f} 个标准误。{known.zh}",
        ),
        fix=Text(
            "An alarm says when the job left the reference, not why: read the first finding that "
            "is an error or a warning.",
            "告警只说明何时偏离参考，不说明原因：请看第一条错误或警告。",
        ),
    )


_NOTHING = Text("nothing could be tested", "没有可检验的指标")
