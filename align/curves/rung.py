"""Compare the metric curves of two runs: the last rung before the evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from align.core.config_value import EffectiveConfig
from align.core.finding import Finding, Severity
from align.core.metric import MetricLog
from align.core.rung import Missing, Rung, RungResult, RungStatus
from align.core.text import Text
from align.curves.accept import Acceptance, accept
from align.curves.accept_findings import acceptance_findings, coverage, criterion_name, outcome_name
from align.curves.amplitude import find_amplitudes
from align.curves.axis import Axis, at_equal
from align.curves.classify import Classified, Found, classify
from align.curves.collapse import find_collapses
from align.curves.collapse_findings import collapse_findings
from align.curves.consistency import consistency_findings, is_consistency
from align.curves.constant import constant_findings, find_stuck
from align.curves.criterion import Outcome
from align.curves.definition import find_redefined, redefined_finding
from align.curves.diverge import MIN_STEPS, find_shifts
from align.curves.exact import exact_findings
from align.curves.first_step import first_step_findings
from align.curves.method import DEFAULT, Method, method_table, method_words
from align.curves.nonfinite import first_nonfinite, nonfinite_findings
from align.curves.order import in_order, order_findings, order_table
from align.curves.pair import PairedMetric, Pairing, is_exact, pair_logs
from align.curves.permutation import find_permuted, permuted_findings
from align.curves.relations import relation_findings
from align.curves.segments import segment_findings
from align.curves.settings import Settings, parallel_sizes, settings_of
from align.curves.shift import one_a_metric
from align.curves.shift_findings import amplitude_findings, shift_findings
from align.curves.signature import find_signature
from align.curves.signature_findings import signature_findings, signature_table
from align.curves.spikes import find_spikes, spike_findings, spike_table, without_spikes
from align.curves.tables import acceptance_table, curve_pairs, metrics_table, one_sided_table
from dumps.store.run_data import RunData

Resolve = Callable[[RunData], EffectiveConfig]
_NO_CONFIG: Settings = {}


def compare(
    reference: RunData,
    candidate: RunData,
    effective: Resolve | None = None,
    method: Method = DEFAULT,
) -> RungResult:
    """Compare all metrics of two runs.

    Args:
        effective: resolves a run's configuration (`align.config.normalise.effective`); without it
            relations that depend on the configuration are not checked.
        method: along which axis, after which warm-up, which metrics.
    """
    configs = (_NO_CONFIG, _NO_CONFIG)
    if effective is not None:
        configs = (settings_of(effective(reference)), settings_of(effective(candidate)))
    return compare_logs(reference.metrics, candidate.metrics, configs, method)


def compare_logs(
    reference: MetricLog,
    candidate: MetricLog,
    configs: tuple[Settings, Settings] = (_NO_CONFIG, _NO_CONFIG),
    method: Method = DEFAULT,
) -> RungResult:
    """Compare two runs' merged metrics.

    Diverged on an error; undecided on a warning, or where acceptance is; aligned otherwise.

    Args:
        configs: effective settings of both, empty where they are not known.

    Raises:
        RunError: A run does not record what the axis is made of.
    """
    if not (reference.step_range and candidate.step_range):
        return _missing(reference, candidate)
    # Overflow to infinity and NaN are values like others here; nothing is printed about them.
    with np.errstate(all="ignore"):
        return _compare(reference, candidate, configs, method)


def _compare(
    reference: MetricLog,
    candidate: MetricLog,
    configs: tuple[Settings, Settings],
    method: Method,
) -> RungResult:
    ours, theirs = method.applied(reference, candidate)
    pairing = pair_logs(ours, theirs)
    if not pairing.metrics:
        return _no_common_step(ours, theirs, pairing)
    acceptance = accept(pairing)
    found = _find(pairing)
    classes = classify(found)
    moved = in_order(classes)
    signature = find_signature(found.collapses, found.shifts)
    findings = _findings(found, acceptance, classes, configs)
    findings += [
        *signature_findings(signature, pairing.first_step),
        *relation_findings(reference, candidate, *configs),
        *order_findings(pairing, moved),
        *segment_findings(ours, theirs),
    ]
    ordered = tuple(sorted(findings, key=_reading_order))
    status = _status(pairing, acceptance, ordered)
    tables = (
        acceptance_table(acceptance, method.axis) if acceptance else None,
        metrics_table(pairing, ordered, classes),
        order_table(moved),
        signature_table(signature),
        spike_table(found.spikes),
        method_table(pairing, method),
        one_sided_table(pairing),
    )
    return RungResult(
        name=Rung.CURVES,
        status=status,
        summary=_summary(pairing, acceptance, ordered, status, method),
        findings=ordered,
        tables=tuple(table for table in tables if table is not None),
        curves=curve_pairs(pairing, ordered, classes),
    )


def _find(pairing: Pairing) -> Found:
    """Run every test, each metric under the first class that holds for it."""
    sampled = _sampled(pairing)
    redefined = tuple(find_redefined(pairing))
    permuted = tuple(m for m in find_permuted(pairing) if not is_exact(m.name))
    other = {r.metric.name for r in redefined}.union(m.name for m in permuted)
    spikes = tuple(find_spikes(pairing))
    tested = [without_spikes(m, spikes) for m in sampled if m.name not in other]
    shifts = find_shifts(tested)
    collapses = tuple(find_collapses(shifts))
    collapsed = {collapse.metric.name for collapse in collapses}
    others = one_a_metric(shift for shift in shifts if shift.metric.name not in collapsed)
    moved = collapsed.union(shift.metric.name for shift in others)
    return Found(
        pairing=pairing,
        shifts=others,
        collapses=collapses,
        nonfinite=first_nonfinite(pairing),
        redefined=redefined,
        permuted=permuted,
        stuck=tuple(find_stuck(pairing)),
        spikes=spikes,
        amplitudes=tuple(a for a in find_amplitudes(tested) if a.metric.name not in moved),
        magnitudes={
            f.symptom.metric: f.symptom.step for f in consistency_findings(pairing) if f.symptom
        },
    )


def _findings(
    found: Found,
    acceptance: Acceptance | None,
    classes: Sequence[Classified],
    configs: tuple[Settings, Settings],
) -> list[Finding]:
    """Put everything that was found into words."""
    pairing = found.pairing
    sizes = parallel_sizes(configs)
    shapes = {c.metric.name: c.shape for c in classes if c.shape is not None}
    return [
        *collapse_findings(found.collapses, pairing.first_step),
        *first_step_findings(pairing),
        *nonfinite_findings(pairing),
        *exact_findings(pairing),
        *consistency_findings(pairing),
        *(acceptance_findings(acceptance, pairing.first_step) if acceptance else ()),
        *(redefined_finding(redefined) for redefined in found.redefined),
        *(f for metric in found.permuted for f in permuted_findings(metric, pairing.first_step)),
        *constant_findings(pairing, found.stuck),
        *shift_findings(found.shifts, pairing.first_step, shapes, sizes),
        *amplitude_findings(found.amplitudes),
        *spike_findings(found.spikes),
        *_numbering_finding(pairing),
    ]


def _sampled(pairing: Pairing) -> list[PairedMetric]:
    """Return the metrics that are judged by their averages, and by nothing else."""
    return [m for m in pairing.training if not is_exact(m.name) and not is_consistency(m.name)]


def _reading_order(finding: Finding) -> tuple[int, int, int]:
    symptom = finding.symptom
    if symptom is None:
        return finding.severity.rank, 1 << 60, 0
    return finding.severity.rank, symptom.begun_by, symptom.rung.position


def _numbering_finding(pairing: Pairing) -> list[Finding]:
    shift = pairing.step_shift
    if shift is None:
        return []
    evidence = pairing.metrics[0].evidence(int(pairing.metrics[0].steps[0]))
    return [
        Finding(
            id="curves.step_numbering",
            rung=Rung.CURVES,
            severity=Severity.INFO,
            title=Text(
                f"Step numbers of the candidate are read as {shift.by:+d}: {shift.why.en}",
                f"被测的步号按 {shift.by:+d} 对齐：{shift.why.zh}",
            ),
            reference=pairing.first_step,
            candidate=pairing.first_step - shift.by,
            evidence=evidence,
            why=Text(
                "Steps are paired by number, so the numbering has to be the same.",
                "两侧按步号配对，因此编号方式必须一致。",
            ),
            fix=Text("Nothing to change.", "无需修改。"),
        )
    ]


def _status(
    pairing: Pairing, acceptance: Acceptance | None, findings: Sequence[Finding]
) -> RungStatus:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return RungStatus.DIVERGED
    if Severity.WARNING in severities:
        return RungStatus.UNDECIDED
    return (
        RungStatus.ALIGNED
        if _all_equal(pairing) or not _too_short(pairing, acceptance)
        else (RungStatus.UNDECIDED)
    )


def _too_short(pairing: Pairing, acceptance: Acceptance | None) -> bool:
    if acceptance is None:
        return pairing.num_steps < MIN_STEPS.value
    return Outcome.TOO_SHORT in acceptance.outcomes


def _all_equal(pairing: Pairing) -> bool:
    return not any(metric.differs().any() for metric in pairing.training)


def _summary(
    pairing: Pairing,
    acceptance: Acceptance | None,
    findings: Sequence[Finding],
    status: RungStatus,
    method: Method,
) -> Text:
    accepted = _acceptance_sentence(acceptance, method.axis)
    parts = [_counts(pairing, findings), method_words(pairing, method), accepted]
    if _too_short(pairing, acceptance):
        parts.append(_EQUAL_BUT_SHORT if _all_equal(pairing) else _SHORT)
    first = next((f for f in findings if f.severity is not Severity.INFO), None)
    if first is not None and status is not RungStatus.ALIGNED:
        parts.insert(0, Text(f"{first.title.en}.", f"{first.title.zh}。"))
    return Text(" ".join(part.en for part in parts if part.en), "".join(p.zh for p in parts))


def _counts(pairing: Pairing, findings: Sequence[Finding]) -> Text:
    num = {s: sum(f.severity is s for f in findings) for s in Severity}
    common, steps = len(pairing.training), pairing.num_steps
    error, warning, info = (num[s] for s in (Severity.ERROR, Severity.WARNING, Severity.INFO))
    return Text(
        f"{common} metrics of training compared over {steps} common steps: {error} errors, "
        f"{warning} warnings, {info} notes.",
        f"在两侧共有的 {steps} 步上比较了 {common} 个训练指标：{error} 个错误，{warning} 个警告，"
        f"{info} 条提示。",
    )


def _acceptance_sentence(acceptance: Acceptance | None, axis: Axis) -> Text:
    if acceptance is None:
        return Text(
            "No reward curve on both sides, so acceptance does not apply.",
            "两侧没有共同的奖励曲线，验收判据不适用。",
        )
    if Outcome.TOO_SHORT in acceptance.outcomes:
        return Text("", "")
    covered = coverage(acceptance)
    along = at_equal(axis)
    names = [criterion_name(c) for c in acceptance.criteria]
    sizes = [f"{c.error:.1%}" for c in acceptance.criteria]
    outcomes = [outcome_name(c.outcome) for c in acceptance.criteria]
    en = [f"{n.en} {s} ({o.en})" for n, s, o in zip(names, sizes, outcomes, strict=True)]
    zh = [f"{n.zh} {s}（{o.zh}）" for n, s, o in zip(names, sizes, outcomes, strict=True)]
    return Text(
        f"Acceptance{along.en}, {covered.en}: {', '.join(en)}.",
        f"验收（{along.zh}{covered.zh}）：{'，'.join(zh)}。",
    )


_SHORT = Text(
    "Too short to judge the shape of the curves; only what is exact was judged.",
    "步数太少，无法判断曲线走势；只判断了不受采样影响的量。",
)
_EQUAL_BUT_SHORT = Text(
    "Every value is equal, over too few steps to judge the shape of the curves.",
    "所有数值相等，但步数太少，无法判断曲线走势。",
)
_HOW_TO_RECORD = Text(
    "Keep the console log of the run, or add 'file' or 'tensorboard' to trainer.logger (verl); "
    "MindSpeed-RL prints its metrics to the console.",
    "保留运行的控制台日志，或在 verl 的 trainer.logger 中加入 'file' 或 'tensorboard'；"
    "MindSpeed-RL 会把指标打印到控制台。",
)


def _missing(reference: MetricLog, candidate: MetricLog) -> RungResult:
    """Say which side recorded no step, and quote the last error its log holds."""
    logs = {"reference": reference, "candidate": candidate}
    lacking = [side for side, log in logs.items() if log.step_range is None]
    errors = [log.last_error for log in logs.values() if log.step_range is None and log.last_error]
    quotes = "; ".join(f"{e.source}:{e.line}: {e.text}" for e in errors)
    side = "both" if len(lacking) == 2 else lacking[0]
    names = {"both": "两侧", "reference": "参考", "candidate": "被测"}
    return RungResult(
        name=Rung.CURVES,
        status=RungStatus.MISSING,
        summary=Text(
            f"No training step recorded by {side if side != 'both' else 'either run'}."
            + (f" The last error in its log: {quotes}" if quotes else ""),
            f"{names[side]}没有记录任何训练步。"
            + (f"其日志中最后的错误：{quotes}" if quotes else ""),
        ),
        missing=(Missing(Text("metrics over steps", "逐步指标"), side, _HOW_TO_RECORD),),
    )


def _no_common_step(reference: MetricLog, candidate: MetricLog, pairing: Pairing) -> RungResult:
    ours, theirs = reference.step_range, candidate.step_range
    assert ours and theirs
    ranges = f"{ours[0]}..{ours[1]}", f"{theirs[0]}..{theirs[1]}"
    table = one_sided_table(pairing)
    return RungResult(
        name=Rung.CURVES,
        status=RungStatus.MISSING,
        summary=Text(
            f"No metric at a common step: the reference has steps {ranges[0]}, the candidate "
            f"{ranges[1]}; {len(pairing.no_common_step)} metrics have the same name.",
            f"没有任何指标记录在相同的步上：参考的步为 {ranges[0]}，被测的步为 {ranges[1]}；"
            f"同名指标有 {len(pairing.no_common_step)} 个。",
        ),
        missing=(
            Missing(Text("metrics at the same steps", "相同步上的指标"), "both", _HOW_TO_RECORD),
        ),
        tables=(table,) if table else (),
    )
