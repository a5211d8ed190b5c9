"""What the comparison says, reduced to what decides about the next experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from align.config.normalise import effective
from align.config.rung import manifest_of
from align.core.config_value import EffectiveConfig
from align.core.finding import Finding, Severity, Strength
from align.core.report import Report
from align.core.run import ArtifactKind
from align.core.rung import Missing, Rung, RungStatus
from align.core.threshold import Threshold
from align.core.verdict import VerdictStatus
from align.frameworks.config_table import config_tables
from align.ladder import earliest_symptom, explains
from align.next.commands import shown
from dumps.store.run_data import RunData

LARGE_PROBS_DIFF = Threshold(
    0.01, source="vendors' decision tree; verl's FAQ gives 0.005 as normal for rollout_probs_diff"
)
_PROBS_DIFF = "training/rollout_probs_diff_mean"
FREE = (Rung.ENVIRONMENT, Rung.CONFIG, Rung.TOKENIZER)  # kept files, no run


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything the choice rests on.

    Args:
        status: None for one run alone.
        cause: finding that explains what is seen; None where the cause is unknown.
        fix_settings: what gives the candidate the reference's value of a config cause.
        symptom: finding that shows the earliest divergence.
        missing: rungs that were not compared.
        free: of these, what files that exist already would fill in.
        harmless, blameless: see `Advice`.
        probs_diff: mean difference of the probabilities of trainer and rollout, candidate.
        frozen: the candidate was run with lr = 0.
        one_token: the candidate was run with max_response_length = 1.
        replayed: the candidate trained on recorded rollouts.
        has_rollouts: the reference's rollouts are recorded.
        step_s: median seconds of a candidate step; None where not recorded.
        last_step: of the reference; None without steps.
    """

    status: VerdictStatus | None
    cause: Finding | None
    fix_settings: tuple[str, ...]
    symptom: Finding | None
    missing: tuple[Rung, ...]
    free: tuple[Missing, ...]
    harmless: tuple[Finding, ...]
    blameless: tuple[Finding, ...]
    probs_diff: float | None
    frozen: bool
    one_token: bool
    replayed: bool
    has_rollouts: bool
    step_s: float | None
    last_step: int | None

    @property
    def probs_differ(self) -> bool:
        """Trainer and rollout engine disagree beyond rounding, or more than in the reference."""
        beyond = self.probs_diff is not None and self.probs_diff > LARGE_PROBS_DIFF.value
        shown = self.symptom.symptom if self.symptom else None
        return beyond or (shown is not None and "rollout_probs_diff" in shown.metric)

    @property
    def in_first_step(self) -> bool:
        """The earliest symptom is in the first recorded step."""
        symptom = self.symptom.symptom if self.symptom else None
        return symptom is not None and symptom.step <= symptom.first_recorded_step


def situation_of(report: Report, reference: RunData, candidate: RunData) -> Situation:
    """Reduce a report and what the runs hold."""
    findings = [finding for rung in report.rungs for finding in rung.findings]
    symptom = earliest_symptom(findings)
    named = next((f for f in findings if f.id == report.verdict.finding_id), None)
    cause = named if report.verdict.cause is not None else None
    missing = [rung for rung in report.rungs if rung.status is RungStatus.MISSING]
    return _situation(
        candidate,
        status=report.verdict.status,
        cause=cause,
        fix_settings=_fix_settings(cause, reference, candidate) if cause else (),
        symptom=symptom,
        missing=tuple(rung.name for rung in missing),
        free=tuple(m for rung in missing if rung.name in FREE for m in rung.missing),
        harmless=tuple(f for f in findings if _is_harmless(f)),
        blameless=() if cause else _blameless(findings, symptom),
        has_rollouts=bool(reference.run.of_kind(ArtifactKind.ROLLOUT)),
        last_step=report.reference.last_step,
    )


def situation_alone(run: RunData, free: Sequence[Missing]) -> Situation:
    """Reduce one run without a reference."""
    steps = run.metrics.step_range
    return _situation(
        run,
        status=None,
        cause=None,
        fix_settings=(),
        symptom=None,
        missing=(),
        free=tuple(free),
        harmless=(),
        blameless=(),
        has_rollouts=bool(run.run.of_kind(ArtifactKind.ROLLOUT)),
        last_step=steps[1] if steps else None,
    )


def _situation(candidate: RunData, **known: object) -> Situation:
    config = effective(candidate.configs, manifest_of(candidate))
    return Situation(
        probs_diff=_mean(candidate, _PROBS_DIFF),
        frozen=_value(config, "actor.lr") == 0,
        one_token=_value(config, "data.max_response_length") == 1,
        replayed=bool(candidate.run.manifest.replay),
        step_s=_median(candidate, "timing_s/step"),
        **known,  # type: ignore[arg-type]
    )


def _fix_settings(cause: Finding, reference: RunData, candidate: RunData) -> tuple[str, ...]:
    """Return the candidate's key with the reference's value; () where a key alone does not do."""
    if cause.rung is not Rung.CONFIG or reference.framework != candidate.framework:
        return ()
    field = cause.id.removeprefix("config.")
    ours, theirs = (effective(r.configs, manifest_of(r)).values for r in (reference, candidate))
    tables = config_tables(candidate.framework)
    if field not in ours or field not in theirs or tables is None:
        return ()
    if ours[field].raw.key != theirs[field].raw.key:
        return ()
    return (f"{tables.user_key(theirs[field].raw.key)}={shown(ours[field].raw.value)}",)


def _is_harmless(finding: Finding) -> bool:
    """A difference of the setup that changes nothing: notes without a symptom."""
    of_setup = finding.rung.position <= Rung.TOKENIZER.position
    mechanism = finding.mechanism
    if mechanism is None or not of_setup or finding.symptom is not None:
        return False
    return finding.severity is Severity.INFO or mechanism.strength is Strength.NONE


def _blameless(findings: Sequence[Finding], symptom: Finding | None) -> tuple[Finding, ...]:
    """Differences with a mechanism that does not reach the earliest symptom."""
    if symptom is None:
        return ()
    return tuple(
        f
        for f in findings
        if f.mechanism is not None
        and not _is_harmless(f)
        and not explains(f.mechanism, symptom.symptom)
    )


def _value(config: EffectiveConfig, field: str) -> object:
    return config.values[field].value if field in config.values else None


def _mean(run: RunData, name: str) -> float | None:
    series = run.metrics.get(name)
    finite = [] if series is None else series.values[np.isfinite(series.values)]
    return float(np.mean(finite)) if len(finite) else None


def _median(run: RunData, name: str) -> float | None:
    series = run.metrics.get(name)
    finite = [] if series is None else series.values[np.isfinite(series.values)]
    return float(np.median(finite)) if len(finite) else None
