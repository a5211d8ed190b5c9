"""The tables and figures the report shows for this rung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from align.core.figure import Cell, Column, Curve, CurvePair, Table
from align.core.finding import Finding, Severity
from align.core.metric import MetricSeries
from align.core.text import Text
from align.curves.accept import Acceptance
from align.curves.accept_findings import coverage, criterion_name, outcome_name
from align.curves.diverge import is_testable
from align.curves.noise import FAMILY_ALPHA
from align.curves.pair import FloatArray, PairedMetric, Pairing
from align.curves.prominence import prominence
from align.curves.shift import Shift, relative_to
from align.curves.shift_findings import dotted
from align.curves.smooth import smooth, window_for
from align.frameworks.vocabulary import MetricKind

NUM_FIGURES = 12


def metrics_table(pairing: Pairing, findings: Sequence[Finding]) -> Table:
    """List every metric both runs recorded, with what was found about it."""
    found = finding_by_metric(pairing, findings)
    rows = [
        _metric_row(metric, found.get(metric.name))
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
            Column("verdict", Text("verdict", "结论")),
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


def acceptance_table(acceptance: Acceptance) -> Table:
    """Show each criterion with its interval, limit, outcome and formula."""
    covered = coverage(acceptance)
    return Table(
        id="curves.acceptance",
        title=Text(
            f"Acceptance of {acceptance.metric.name}, {covered.en}",
            f"{acceptance.metric.name} 的验收，{covered.zh}",
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
    pairing: Pairing, findings: Sequence[Finding], shifts: Iterable[Shift]
) -> tuple[CurvePair, ...]:
    """Return the curves a reader should see: those with findings first, then the usual ones."""
    found = finding_by_metric(pairing, findings)
    by_name = {shift.metric.name: shift for shift in shifts}
    drawable = [m for m in pairing.metrics if m.meaning.numeric or m.name in found]
    drawable.sort(key=lambda m: (_severity_rank(found.get(m.name)), prominence(m.name)))
    return tuple(
        _curve_pair(metric, found.get(metric.name), by_name.get(metric.name))
        for metric in drawable[:NUM_FIGURES]
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


def _metric_row(metric: PairedMetric, finding: Finding | None) -> tuple[Cell, ...]:
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
        _verdict(metric, finding, bool(differs.any())),
    )


def _verdict(metric: PairedMetric, finding: Finding | None, differs: bool) -> Text:
    if finding is not None:
        severity = _SEVERITY[finding.severity]
        return Text(f"{severity.en}: {finding.id}", f"{severity.zh}：{finding.id}")
    if not differs:
        constant = len(metric) > 1 and np.ptp(metric.reference) == 0
        return _EQUAL_CONSTANT if constant else _EQUAL
    return _WITHIN_NOISE if is_testable(metric) else _NOT_JUDGED


_REFERENCE, _CANDIDATE = Text("reference", "参考"), Text("candidate", "被测")
_DIFFERENT_STEPS = Text("both, at different steps", "双方都有，但步不同")
_EQUAL, _EQUAL_CONSTANT = Text("equal", "相等"), Text("equal, constant", "相等，恒定不变")
_WITHIN_NOISE, _NOT_JUDGED = Text("within noise", "在噪声范围内"), Text("not judged", "不作判断")
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


def _curve_pair(metric: PairedMetric, finding: Finding | None, shift: Shift | None) -> CurvePair:
    window = window_for(len(metric))
    if shift is not None:
        means, since = f"{shift.reference:.4g} → {shift.candidate:.4g}", shift.onset.words
        note = Text(
            f"apart {since.en}; mean of the last {shift.num_last} steps {means}",
            f"{since.zh}分开；最后 {shift.num_last} 步的均值 {means}",
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
    )


def _curve(series: MetricSeries, shift: int, window: int) -> Curve:
    smoothed: FloatArray = smooth(series.values, window)
    return Curve(
        steps=tuple(int(step) + shift for step in series.steps),
        values=tuple(series.values.tolist()),
        smoothed=tuple(smoothed.tolist()),
    )
