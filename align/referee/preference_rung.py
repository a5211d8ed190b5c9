"""Loss rung of DPO: each run's losses beside its configuration, then what both train on.

Losses are an invariant within one run. Across two, pairs of one step must be the same, and at the
first one that both record the models must give them the same log_probs, and those the same
gradient.
"""

from __future__ import annotations

from align.config.normalise import effective
from align.core.finding import Finding, Severity, Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.referee.preference_examine import ExaminedPreferences, examine_preferences
from align.referee.preference_findings import (
    gradients_finding,
    log_probs_findings,
    moved_finding,
    pairs_finding,
    preference_finding,
)
from align.referee.preference_inputs import (
    LogProbsApart,
    gradients_apart,
    log_probs_apart,
    other_pairs,
    reference_moved,
)
from align.referee.preference_passes import PreferencePass, preference_passes
from dumps.store.run_data import RunData


def compare_preferences(reference: RunData, candidate: RunData) -> RungResult | None:
    """Judge two DPO runs; None where either records no pairs."""
    runs = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    passes = tuple(list(preference_passes(run)) for _, run in runs)
    if not all(passes):
        return None
    examined = [
        (side, examine_preferences(side, run, own))
        for (side, run), own in zip(runs, passes, strict=True)
    ]
    judged = [found for _, found in examined if isinstance(found, ExaminedPreferences)]
    refused = [(side, found) for side, found in examined if isinstance(found, Text)]
    wrong = [each for each in judged if each.misfits]
    findings = [] if _both_alike(wrong) else [_losses(each, wrong) for each in wrong]
    apart = log_probs_apart(reference, candidate, passes)
    findings += _across(reference, candidate, passes, apart)
    if not findings and not wrong:
        gradients = gradients_apart(reference, candidate, passes)
        findings += [] if gradients is None else [gradients_finding(gradients)]
    if findings:
        return _found(findings)
    if wrong:
        return RungResult(Rung.LOSS, RungStatus.UNDECIDED, _BOTH)
    if refused:
        return _not_judged(refused)
    return RungResult(Rung.LOSS, RungStatus.ALIGNED, _aligned(judged, apart))


def _across(
    reference: RunData,
    candidate: RunData,
    passes: tuple[list[PreferencePass], ...],
    apart: LogProbsApart | None,
) -> list[Finding]:
    """Compare which pairs both train on, and what both runs' models give the same ones."""
    pairs = other_pairs(*passes)
    findings = [] if pairs is None else [pairs_finding(pairs)]
    if apart is None:
        return findings
    findings += log_probs_findings(apart)
    if not apart.reference_differs and _is_frozen(reference) and _is_frozen(candidate):
        moved = reference_moved(passes, apart)
        findings += [] if moved is None else [moved_finding(moved)]
    return findings


def _is_frozen(run: RunData) -> bool:
    """Whether a run's configuration leaves its reference as it is."""
    sync = effective(run.configs, run.run.manifest).values.get("ref.sync")
    return sync is None or sync.value is not True


def _both_alike(wrong: list[ExaminedPreferences]) -> bool:
    """Whether both depart alike, so that neither is the other's measure."""
    causes = {None if each.cause is None else each.cause.what for each in wrong}
    return len(wrong) == 2 and len(causes) == 1


def _losses(run: ExaminedPreferences, wrong: list[ExaminedPreferences]) -> Finding:
    return preference_finding(run, alone=len(wrong) == 1)


def _found(findings: list[Finding]) -> RungResult:
    title = findings[0].title
    certain = any(finding.severity is Severity.ERROR for finding in findings)
    return RungResult(
        Rung.LOSS,
        RungStatus.DIVERGED if certain else RungStatus.UNDECIDED,
        Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。"),
        tuple(findings),
    )


def _not_judged(refused: list[tuple[Side, Text]]) -> RungResult:
    side = refused[0][0].value if len(refused) == 1 else "both"
    why = refused[0][1]
    return RungResult(
        Rung.LOSS,
        RungStatus.MISSING,
        Text(f"Not compared: {why.en}.", f"未比较：{why.zh}。"),
        missing=(missing_artifact(Rung.LOSS, side),),
    )


def _aligned(judged: list[ExaminedPreferences], apart: LogProbsApart | None) -> Text:
    counts = [run.num_judged for run in judged]
    same = Text(
        "The runs record no step in common with equal pairs.",
        "两次运行没有样本对相同的共同已记录步。",
    )
    if apart is not None:
        same = Text(
            f"At step {apart.step} equal pairs have equal log_probs.",
            f"第 {apart.step} 步相同样本对的 log_probs 相同。",
        )
    return Text(
        "Both runs' losses of pairs are those that their configurations declare "
        f"({counts[0]} and {counts[1]} micro-batches recomputed in float64). {same.en}",
        f"两次运行的偏好损失都与各自配置所声明的一致（以 float64 重算 {counts[0]} 与 "
        f"{counts[1]} 个 micro-batch）。{same.zh}",
    )


_BOTH = Text(
    "Neither run has the loss of pairs that its configuration declares, and both depart alike.",
    "两次运行的偏好损失都与配置所声明的不符，且偏离方式相同。",
)
