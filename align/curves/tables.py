"""The tables and figures the report shows for this rung."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from align.core.figure import Cell, Column, Curve, CurvePair, Table
from align.core.finding import Finding, Severity
from align.core.metric import MetricSeries
from align.core.text import Text
from align.curves.accept import Acceptance
from align.curves.accept_findings import coverage, criterion_name, outcome_name
from align.curves.axis import Axis, at_equal
from align.curves.classify import Classified
from align.curves.curve_class import CurveClass
from align.curves.diverge import is_testable
from align.curves.noise import FAMILY_ALPHA, error_of_average
from align.curves.onset import NOISE_BAND, Onset
from align.curves.pair import FloatArray, PairedMetric, Pairing
from align.curves.prominence import prominence, task_of
from align.curves.shift import relative_to
from align.curves.shift_findings import dotted
from align.curves.smooth import smooth, window_for
from align.frameworks.vocabulary import MetricKind

NUM_FIGURES = 12


def metrics_table(
    pairing: Pairing, findings: Sequence[Finding], classes: Sequence[Classified]
) -> Table:
    """List every metric both runs recorded, with its class, its onset and its finding."""
    found = finding_by_metric(pairing, findings)
    by_name = {c.metric.name: c for c in classes}
    rows = [
        _metric_row(metric, found.get(metric.name), by_name.get(metric.name))
        for metric in sorted(pairing.metrics, key=lambda m: prominence(m.name))
    ]
    return Table(
        id="curves.metrics",
        title=Text("Metrics both runs recorded", "两侧都记录的指标"),
        columns=(
            Column("metric", Text("metric", "指标")),
            Column("rung", Text("rung", "环节")),
            Column("steps", Text("common steps", "共有步数"), numeric=True),
            Column("first_diff", Text("first differing step", "最早不同的步"), numeric=True),
            Column("reference", Text("reference, last half", "参考后半程均值"), numeric=True),
            Column("candidate", Text("candidate, last half", "被测后半程均值"), numeric=True),
            Column("relative", Text("relative difference", "相对差异"), numeric=True),
            Column("class", Text("class", "类别")),
            Column("onset", Text("apart from step", "分开的步"), numeric=True),
            Column("detail", Text("size", "大小")),
            Column("finding", Text("finding", "发现")),
        ),
        rows=tuple(rows),
    )


def one_sided_table(pairing: Pairing) -> Table | None:
    """List metrics only one run recorded, and those without a common step."""
    rows = [
        *(_series_row(series, _REFERENCE) for series in pairing.reference_only),
        *(_series_row(series, _CANDIDATE) for series in pairing.candidate_only),
        *((name, _DIFFERENT_STEPS, "", None, None) for name in pairing.no_common_step),
    ]
    if not rows:
        return None
    return Table(
        id="curves.one_sided",
        title=Text("Metrics that cannot be paired", "无法配对的指标"),
        columns=(
            Column("metric", Text("metric", "指标")),
            Column("side", Text("recorded by", "由谁记录")),
            Column("spelling", Text("spelled", "原始拼写")),
            Column("first", Text("first step", "首步"), numeric=True),
            Column("last", Text("last step", "末步"), numeric=True),
        ),
        rows=tuple(rows),
    )


def acceptance_table(acceptance: Acceptance, axis: Axis = Axis.STEP) -> Table:
    """Show each criterion with its interval, limit, outcome and formula."""
    covered, along = coverage(acceptance), at_equal(axis)
    return Table(
        id="curves.acceptance",
        title=Text(
            f"Acceptance of {acceptance.metric.name}{along.en}, {covered.en}",
            f"{acceptance.metric.name} 的验收，{along.zh}{covered.zh}",
        ),
        columns=(
            Column("criterion", Text("criterion", "判据")),
            Column("reference", Text("reference", "参考"), numeric=True),
            Column("candidate", Text("candidate", "被测"), numeric=True),
            Column("error", Text("error", "误差"), numeric=True),
            Column("low", Text("95 % low", "95% 下界"), numeric=True),
            Column("high", Text("95 % high", "95% 上界"), numeric=True),
            Column("limit", Text("limit", "限值"), numeric=True),
            Column("scale", Text("denominator", "分母"), numeric=True),
            Column("outcome", Text("outcome", "结论")),
            Column("formula", Text("formula", "公式")),
        ),
        rows=tuple(
            (
                criterion_name(c),
                *(c.reference, c.candidate, c.error, c.low, c.high, c.limit.value, c.scale),
                outcome_name(c.outcome),
                c.formula,
            )
            for c in acceptance.criteria
        ),
    )


def curve_pairs(
    pairing: Pairing, findings: Sequence[Finding], classes: Sequence[Classified]
) -> tuple[CurvePair, ...]:
    """Return the curves a reader should see: those with findings first, then the usual ones.

    Last, where there are two tasks or more, the reward of each: an average hides a task.
    """
    found = finding_by_metric(pairing, findings)
    by_name = {c.metric.name: c for c in classes}
    drawable = [m for m in pairing.metrics if m.meaning.numeric or m.name in found]
    drawable.sort(key=lambda m: (_severity_rank(found.get(m.name)), prominence(m.name)))
    tasks = [m for m in pairing.metrics if task_of(m.name) is not None]
    tasks = tasks[:NUM_FIGURES] if len(tasks) > 1 else []
    whole = [m for m in drawable if m.name not in {t.name for t in tasks}][:NUM_FIGURES]
    return tuple(
        _curve_pair(metric, found.get(metric.name), by_name.get(metric.name), metric in tasks)
        for metric in (*whole, *tasks)
        if np.isfinite(metric.reference_series.values).any()
    )


def finding_by_metric(pairing: Pairing, findings: Iterable[Finding]) -> Mapping[str, Finding]:
    """Map a metric to its most severe finding, which its id or its symptom names."""
    names = {f"curves.{dotted(metric.name)}": metric.name for metric in pairing.metrics}
    found: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda f: f.severity.rank):
        about = finding.symptom.metric if finding.symptom else None
        name = about or names.get(finding.id.rpartition(".")[0])
        if name:
            found.setdefault(name, finding)
    return found


def _severity_rank(finding: Finding | None) -> int:
    return 9 if finding is None else finding.severity.rank


def _metric_row(
    metric: PairedMetric, finding: Finding | None, classified: Classified | None
) -> tuple[Cell, ...]:
    differs, finite = metric.differs(), metric.finite_only()
    half = len(finite) // 2
    means = [
        float(v[half:].mean()) if len(finite) else np.nan
        for v in (finite.reference, finite.candidate)
    ]
    scale = relative_to(means[0], finite.reference) if len(finite) else 0.0
    return (
        metric.name,
        _UNJUDGED.get(metric.meaning.kind, metric.meaning.rung.value),
        len(metric),
        int(metric.steps[int(np.argmax(differs))]) if differs.any() else None,
        *means,
        (means[1] - means[0]) / scale if scale else (0.0 if means[0] == means[1] else None),
        *_class_cells(classified, bool(differs.any())),
        _finding_cell(finding),
    )


def _class_cells(classified: Classified | None, differs: bool) -> tuple[Cell, Cell, Cell]:
    if classified is None:  # performance and validation are not judged here
        kind = CurveClass.NOT_JUDGED if differs else CurveClass.EQUAL
        return kind.words, None, ""
    onset = None if classified.onset is None else classified.onset.step
    return classified.kind.words, onset, classified.detail


def _finding_cell(finding: Finding | None) -> Text:
    if finding is None:
        return Text("", "")
    severity = _SEVERITY[finding.severity]
    return Text(f"{severity.en}: {finding.id}", f"{severity.zh}：{finding.id}")


_REFERENCE, _CANDIDATE = Text("reference", "参考"), Text("candidate", "被测")
_DIFFERENT_STEPS = Text("both, at different steps", "双方都有，但步不同")
_SEVERITY = {
    Severity.ERROR: Text("error", "错误"),
    Severity.WARNING: Text("warning", "警告"),
    Severity.INFO: Text("info", "提示"),
}
_UNJUDGED = {
    MetricKind.PERFORMANCE: Text("performance", "性能"),
    MetricKind.BOOKKEEPING: Text("bookkeeping", "进度"),
    MetricKind.COUNTER: Text("counter", "累计量"),
}


def _series_row(series: MetricSeries, side: Text) -> tuple[Cell, ...]:
    return series.name, side, series.spelling, int(series.steps[0]), int(series.steps[-1])


def _curve_pair(
    metric: PairedMetric, finding: Finding | None, classified: Classified | None, is_task: bool
) -> CurvePair:
    window = window_for(len(metric))
    onset = None
    if classified is not None and classified.kind.is_apart:
        words, detail, onset = classified.kind.words, classified.detail, classified.onset
        since = Text("", "") if onset is None else onset.words
        note = Text(
            f"{words.en} {since.en} {detail.en}".strip(),
            f"{since.zh}{words.zh} {detail.zh}".strip(),
        )
    elif finding is not None:
        note = finding.title
    else:
        note = Text(
            f"no lasting shift at the {FAMILY_ALPHA.value:.0%} level",
            f"在 {FAMILY_ALPHA.value:.0%} 水平上没有持续偏移",
        )
    return CurvePair(
        metric=metric.name,
        reference=_curve(metric.reference_series, 0, window),
        candidate=_curve(metric.candidate_series, metric.shift, window),
        window=window,
        note=note,
        finding_id=None if finding is None else finding.id,
        onset=None if onset is None else (onset.step, onset.step + onset.uncertainty),
        noise=_noise_band(metric, window, onset),
        task=task_of(metric.name) if is_task else None,
    )


def _noise_band(metric: PairedMetric, window: int, onset: Onset | None) -> float | None:
    """Return how far two equal curves differ, smoothed, within 3 standard errors.

    In the metric's own unit, from how the difference scatters and wanders around its line, before
    and since its onset apart.
    """
    finite = metric.finite_only()
    if not is_testable(metric):
        return None
    rest = finite.candidate - finite.reference
    if onset is not None:
        since = finite.steps >= onset.step
        for part in (since, ~since):
            if part.any():
                rest[part] -= rest[part].mean()
    band = NOISE_BAND.value * error_of_average(rest, window) if np.ptp(rest) > 0 else 0.0
    return band if math.isfinite(band) else None


def _curve(series: MetricSeries, shift: int, window: int) -> Curve:
    smoothed: FloatArray = smooth(series.values, window)
    return Curve(
        steps=tuple(int(step) + shift for step in series.steps),
        values=tuple(series.values.tolist()),
        smoothed=tuple(smoothed.tolist()),
    )
