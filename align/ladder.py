"""Compare two runs rung by rung, in causal order, and judge what the rungs show together.

The verdict is the first difference whose mechanism can explain the earliest recorded symptom. A
difference that cannot have caused what is seen is never blamed: with no explanation left, the
cause is unknown and the verdict names the cheapest missing evidence instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from align.core.finding import Finding, Mechanism, Severity, Strength, Symptom
from align.core.report import Report, RunSummary
from align.core.rung import RUNGS, Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.verdict import Confidence, Verdict, VerdictStatus
from dumps.store.run_data import RunData

if TYPE_CHECKING:
    from align.core.config_value import EffectiveConfig
    from tokenizer_check.data_prompts import DataPrompts

Compare = Callable[..., RungResult]  # of reference, candidate; further runs by keyword

_STATED = (Rung.ENVIRONMENT, Rung.CONFIG)
_TEMPLATE_OPTIONS = "data.apply_chat_template_kwargs."


def comparisons() -> Mapping[Rung, Compare]:
    """Return what compares each rung; imported late, as it brings numpy and pandas."""
    import align.config.rung
    import align.environment.rung
    import align.evals.rung
    import align.layers.weight_sync_rung
    import align.rollout.tokens_rung
    import tokenizer_check.rung

    return {
        Rung.ENVIRONMENT: align.environment.rung.compare,
        Rung.CONFIG: align.config.rung.compare,
        Rung.TOKENIZER: tokenizer_check.rung.compare,
        Rung.DATA: compare_data,
        Rung.ROLLOUT: compare_rollouts,
        Rung.TOKENS: align.rollout.tokens_rung.compare,
        Rung.FORWARD: compare_forward,
        Rung.REWARD: compare_rewards,
        Rung.ADVANTAGE: compare_advantages,
        Rung.LOSS: compare_losses,
        Rung.BACKWARD: compare_gradients,
        Rung.OPTIMIZER: compare_optimizers,
        Rung.WEIGHT_SYNC: align.layers.weight_sync_rung.compare,
        Rung.CURVES: compare_curves,
        Rung.EVALS: align.evals.rung.compare,
    }


def compare_data(reference: RunData, candidate: RunData) -> RungResult:
    """Compare the rows of both runs; where they differ, replay both samplers to say why."""
    from align.config.normalise import effective
    from align.data.rung import compare

    return compare(
        reference,
        candidate,
        lambda run: effective(run.configs, run.run.manifest),
        prompts_of_rows,
    )


def prompts_of_rows(run: RunData, config: EffectiveConfig) -> DataPrompts | None:
    """Load the tokenizer of a run, with what its configuration says of the chat template."""
    from tokenizer_check.data_prompts import data_prompts

    options = {
        value.raw.key.removeprefix(_TEMPLATE_OPTIONS): value.raw.value
        for value in config.values.values()
        if value.raw.key.startswith(_TEMPLATE_OPTIONS)
    }
    custom = config.values.get("data.chat_template.custom")
    own = custom.value if custom is not None and isinstance(custom.value, str) else None
    found = data_prompts(run, options, own)
    return None if isinstance(found, Text) else found


def compare_rollouts(reference: RunData, candidate: RunData) -> RungResult:
    """Compare the responses of both runs, and group sizes with what the runs configure."""
    from align.config.normalise import effective
    from align.rollout.rung import compare

    return compare(reference, candidate, lambda run: effective(run.configs, run.run.manifest))


def compare_advantages(reference: RunData, candidate: RunData) -> RungResult:
    """Recompute both runs' advantages from their own scores, or from rewards and values."""
    from align.config.normalise import effective
    from align.referee.estimate_rung import compare_estimates
    from align.rollout.advantage_rung import compare

    result = compare(reference, candidate, lambda run: effective(run.configs, run.run.manifest))
    return joined(result, compare_estimates(reference, candidate))


def compare_rewards(reference: RunData, candidate: RunData) -> RungResult:
    """Compare the scores of equal responses, then what was taken from them for the KL.

    A right penalty says nothing of scores that were not compared.
    """
    from align.referee.reward_penalty import compare_penalties
    from align.rollout.reward_rung import compare

    scores, penalties = compare(reference, candidate), compare_penalties(reference, candidate)
    if penalties is None or (not penalties.findings and scores.status is RungStatus.MISSING):
        return scores
    return joined(scores, penalties)


def compare_losses(reference: RunData, candidate: RunData) -> RungResult:
    """Hold losses against their configurations, of pairs or of responses; walk along critics."""
    from align.referee.critic_rung import compare_critics
    from align.referee.loss_rung import compare
    from align.referee.preference_rung import compare_preferences

    of_pairs = compare_preferences(reference, candidate)
    if of_pairs is not None:
        return of_pairs
    return joined(compare(reference, candidate), compare_critics(reference, candidate))


def compare_forward(
    reference: RunData, candidate: RunData, **further: Sequence[RunData]
) -> RungResult:
    """Compare layers, then say what shape trainer - rollout log_probs have where recorded.

    Args:
        further: runs to observe noise on.
    """
    from align.layers.forward_rung import compare
    from align.referee.probability_section import with_log_probs

    return with_log_probs(compare(reference, candidate, **further), reference, candidate)


def compare_gradients(
    reference: RunData, candidate: RunData, **further: Sequence[RunData]
) -> RungResult:
    """Compare the gradients of both runs, then their norms, where they are recorded.

    Args:
        further: runs to observe noise on.
    """
    from align.layers.backward_rung import compare
    from align.referee.gradient_norms import compare_norms

    return joined(compare(reference, candidate, **further), compare_norms(reference, candidate))


def compare_optimizers(reference: RunData, candidate: RunData) -> RungResult:
    """Check learning rates against their schedules, then updates against their gradients."""
    from align.layers.update_rung import compare

    return joined(compare_schedules(reference, candidate), compare(reference, candidate))


def joined(first: RungResult, second: RungResult | None) -> RungResult:
    """Join two comparisons of one rung; a finding both make is kept once."""
    if second is None or second.status is RungStatus.MISSING:
        return first
    if first.status is RungStatus.MISSING:
        return second
    seen = {finding.id for finding in first.findings}
    new = tuple(finding for finding in second.findings if finding.id not in seen)
    shown = first if first.findings or not new else second
    order = (RungStatus.DIVERGED, RungStatus.UNDECIDED, RungStatus.ALIGNED)
    return replace(
        shown,
        status=min((first.status, second.status), key=order.index),
        findings=(*first.findings, *new),
        tables=(*first.tables, *second.tables),
        curves=(*first.curves, *second.curves),
    )


def compare_schedules(reference: RunData, candidate: RunData) -> RungResult:
    """Check the logged learning rates against the schedules both configurations declare."""
    from align.config.normalise import effective
    from align.curves.schedule_rung import compare

    return compare(reference, candidate, lambda run: effective(run.configs, run.run.manifest))


def compare_curves(
    reference: RunData,
    candidate: RunData,
    *,
    axis: str = "step",
    warm_up: int = 0,
    metrics: tuple[str, ...] = (),
) -> RungResult:
    """Compare the metric curves, and their relations under what both runs configure."""
    from align.config.normalise import effective
    from align.curves.axis import Axis
    from align.curves.method import Method
    from align.curves.rung import compare
    from align.curves.watch_section import with_watch

    result = compare(
        reference,
        candidate,
        lambda run: effective(run.configs, run.run.manifest),
        Method(Axis(axis), warm_up, metrics),
    )
    return with_watch(result, candidate.watches)


def climb(
    reference: RunData,
    candidate: RunData,
    *,
    on_rung: Callable[[Rung], None] = lambda rung: None,
    **further: Sequence[RunData],
) -> Report:
    """Compare every rung and judge. ``on_rung`` is told each rung before it is compared.

    Args:
        further: ``noise`` and ``referee``, the runs that layers' limits are taken from.
    """
    from align.config.measured import measured

    compare = comparisons()
    results = []
    for rung in RUNGS:
        on_rung(rung)
        more = further if rung in (Rung.FORWARD, Rung.BACKWARD) else {}
        results.append(compare[rung](reference, candidate, **more))
    results = measured(results)
    return Report(summarise(reference), summarise(candidate), judge(results), tuple(results))


def summarise(data: RunData) -> RunSummary:
    """Name a run by what its files state about it."""
    steps = data.metrics.step_range
    return RunSummary(
        label=data.run.label,
        framework=data.framework,
        framework_version=data.framework_version,
        device=data.device,
        first_step=steps[0] if steps else None,
        last_step=steps[1] if steps else None,
        num_files=len({artifact.path for artifact in data.run.artifacts}),
        unknown_files=tuple(map(str, data.run.unknown)),
        problems=tuple(str(problem) for problem in data.problems),
    )


def judge(results: Sequence[RungResult]) -> Verdict:
    """Decide which link breaks first and what explains it.

    Args:
        results: one per rung, in causal order.
    """
    findings = [finding for result in results for finding in result.findings]
    absent = tuple(r.name for r in results if r.status is RungStatus.MISSING)
    if len(absent) == len(results):
        return _not_comparable(results, absent)
    symptom = earliest_symptom(findings)
    causes = [f for f in findings if _can_be_cause(f)]
    explaining = [f for f in causes if symptom and explains(f.mechanism, symptom.symptom)]
    known_to_matter = [f for f in causes if f.severity is Severity.ERROR]
    if explaining:
        return _explained(explaining, findings, absent)
    if known_to_matter and (symptom is None or symptom.severity is not Severity.ERROR):
        return _cause_without_symptom(known_to_matter, symptom, absent)
    if symptom:
        return _unexplained(symptom, causes, absent)
    return _no_symptom(results, findings, absent)


def explains(mechanism: Mechanism | None, symptom: Symptom | None) -> bool:
    """Tell whether a difference can produce a symptom, by place, time and size.

    Place and time: within the first recorded step a difference changes only quantities of its own
    rung or later ones. Later, or in a run resumed past step 1, trained weights carry it anywhere.
    Size: a numeric difference explains noise-sized effects only, or what its signature names.
    """
    if mechanism is None or symptom is None:
        return False
    if any(fnmatchcase(symptom.metric, pattern) for pattern in mechanism.signature):
        return True
    trained_under_it = symptom.step > symptom.first_recorded_step or symptom.first_recorded_step > 1
    reaches = mechanism.acts_on.position <= symptom.rung.position or trained_under_it
    return reaches and (mechanism.strength is Strength.SEMANTIC or symptom.noise_sized)


def earliest_symptom(findings: Iterable[Finding]) -> Finding | None:
    """Return the first symptom in time, then in causal order; errors before warnings.

    An exact event wins over an onset whose uncertainty reaches past it.
    """
    shown = [f for f in findings if f.symptom and f.severity is not Severity.INFO]
    return min(shown, key=_symptom_order, default=None)


def _symptom_order(finding: Finding) -> tuple[int, int, int]:
    assert finding.symptom is not None
    return finding.severity.rank, finding.symptom.begun_by, finding.symptom.rung.position


def _can_be_cause(finding: Finding) -> bool:
    mechanism = finding.mechanism
    return (
        mechanism is not None
        and mechanism.strength is not Strength.NONE
        and finding.severity is not Severity.INFO
    )


def _explained(
    explaining: Sequence[Finding],
    findings: Sequence[Finding],
    absent: tuple[Rung, ...],
) -> Verdict:
    """Blame the most severe explanation, the first in causal order among equals."""
    cause, *others = sorted(explaining, key=lambda f: (f.severity.rank, f.rung.position))
    certain = cause.severity is Severity.ERROR
    diverged = certain or any(f.severity is Severity.ERROR for f in findings)
    also = ", ".join(f.id for f in others if f.severity is cause.severity)
    return Verdict(
        status=VerdictStatus.DIVERGED if diverged else VerdictStatus.UNDECIDED,
        rung=cause.rung,
        finding_id=cause.id,
        sentence=_explained_sentence(cause, _first_shown(cause, findings), diverged),
        cause=_cause_text(cause, also),
        confidence=Confidence.HIGH if certain else Confidence.MEDIUM,
        fix=cause.fix,
        not_recorded=absent,
    )


def _first_shown(cause: Finding, findings: Sequence[Finding]) -> Symptom:
    """Return the earliest symptom of any weight that the cause explains."""
    shown = [f.symptom for f in findings if f.symptom and f.severity is not Severity.INFO]
    explained = [symptom for symptom in shown if explains(cause.mechanism, symptom)]
    return min(explained, key=lambda symptom: (symptom.step, symptom.rung.position))


def _explained_sentence(cause: Finding, symptom: Symptom, diverged: bool) -> Text:
    metric, step = symptom.metric, symptom.step
    if diverged:
        return Text(
            f"The runs diverge first at rung {cause.rung.value}: {cause.title.en}. This explains "
            f"the earliest symptom, {metric} from step {step} on.",
            f"两次运行最早在 {cause.rung.value} 环节偏离：{cause.title.zh}。"
            f"它可以解释最早的现象：{metric} 从第 {step} 步开始不同。",
        )
    return Text(
        f"Not decided: {metric} shifts from step {step} on; {cause.title.en} can explain a shift "
        "of this size, and so can chance.",
        f"尚不能判定：{metric} 从第 {step} 步起出现偏移；"
        f"{cause.title.zh} 可以解释这样大小的偏移，随机波动也可以。",
    )


def _cause_text(cause: Finding, also: str) -> Text:
    if not also:
        return cause.why
    return Text(
        f"{cause.why.en} Also able to explain it: {also}.",
        f"{cause.why.zh} 同样可以解释该现象的差异：{also}。",
    )


def _cause_without_symptom(
    causes: Sequence[Finding], symptom: Finding | None, absent: tuple[Rung, ...]
) -> Verdict:
    """Name the first difference known to matter, and how many stand beside it."""
    cause, *others = causes
    beside = (
        Text(
            f" {len(others)} more differences are known to change results.",
            f"另有 {len(others)} 项差异已知会改变结果。",
        )
        if others
        else Text("", "")
    )
    seen = (
        Text(
            "nothing recorded after it shows the effect yet",
            "目前记录的后续环节尚未显现其影响",
        )
        if symptom is None
        else Text(f"it does not explain {symptom.id}", f"但它不能解释 {symptom.id}")
    )
    return Verdict(
        status=VerdictStatus.DIVERGED,
        rung=cause.rung,
        finding_id=cause.id,
        sentence=Text(
            f"The runs differ first at rung {cause.rung.value}: {cause.title.en}; {seen.en}."
            f"{beside.en}",
            f"两次运行最早在 {cause.rung.value} 环节不同：{cause.title.zh}；{seen.zh}。{beside.zh}",
        ),
        cause=cause.why,
        confidence=Confidence.MEDIUM,
        fix=cause.fix,
        not_recorded=absent,
    )


def _unexplained(symptom: Finding, causes: Sequence[Finding], absent: tuple[Rung, ...]) -> Verdict:
    diverged = symptom.severity is Severity.ERROR
    others = ", ".join(f.id for f in causes)
    blameless = (
        Text(f" What else differs cannot explain it: {others}.", f"其余差异无法解释它：{others}。")
        if others
        else Text("", "")
    )
    earlier = ", ".join(r.value for r in absent if r.position < symptom.rung.position)
    unrecorded = (
        Text(f" Earlier rungs not compared: {earlier}.", f"更早但未比较的环节：{earlier}。")
        if earlier
        else Text("", "")
    )
    opening = (
        Text("The runs diverge", "两次运行已出现偏离")
        if diverged
        else Text("Not decided", "尚不能判定")
    )
    return Verdict(
        status=VerdictStatus.DIVERGED if diverged else VerdictStatus.UNDECIDED,
        rung=symptom.rung,
        finding_id=symptom.id,
        sentence=Text(
            f"{opening.en}: {symptom.title.en}. The cause is unknown.{blameless.en}{unrecorded.en}",
            f"{opening.zh}：{symptom.title.zh}。原因未知。{blameless.zh}{unrecorded.zh}",
        ),
        cause=None,
        confidence=Confidence.NONE,
        next_step=Text(
            f"{symptom.fix.en} `align next` chooses the cheapest experiment, with its commands.",
            f"{symptom.fix.zh}`align next` 会选出代价最小的实验并给出命令。",
        ),
        not_recorded=absent,
    )


def _no_symptom(
    results: Sequence[RungResult], findings: Sequence[Finding], absent: tuple[Rung, ...]
) -> Verdict:
    """Judge rungs that show no divergence in time: all aligned, or something left open."""
    compared = [r for r in results if r.status is not RungStatus.MISSING]
    unsettled = next((r for r in compared if r.status is not RungStatus.ALIGNED), None)
    weighty = [f for f in findings if f.severity is not Severity.INFO]
    # what was seen to differ before what is merely set otherwise
    worst = min(weighty, key=lambda f: (f.severity.rank, f.rung in _STATED), default=None)
    if unsettled is None:
        return _aligned(results, absent)
    diverged = worst is not None and worst.severity is Severity.ERROR
    said = worst.title if worst else unsettled.summary
    return Verdict(
        status=VerdictStatus.DIVERGED if diverged else VerdictStatus.UNDECIDED,
        rung=worst.rung if worst else unsettled.name,
        finding_id=worst.id if worst else None,
        sentence=Text(
            f"{'The runs differ' if diverged else 'Not decided'}: {said.en}",
            f"{'两次运行不同' if diverged else '尚不能判定'}：{said.zh}",
        ),
        cause=None,
        confidence=Confidence.NONE,
        next_step=worst.fix if worst else first_to_record(results),
        not_recorded=absent,
    )


def _aligned(results: Sequence[RungResult], absent: tuple[Rung, ...]) -> Verdict:
    compared = [r for r in results if r.status is not RungStatus.MISSING]
    of_a_step = [r for r in results if r.name.position < Rung.CURVES.position]
    names = ", ".join(r.name.value for r in compared)
    return Verdict(
        status=VerdictStatus.ALIGNED,
        rung=None,
        finding_id=None,
        sentence=Text(
            f"No difference that matters on the {len(compared)} rungs compared ({names}); "
            f"{len(absent)} rungs were not compared.",
            f"已比较的 {len(compared)} 个环节（{names}）没有发现有影响的差异；"
            f"另有 {len(absent)} 个环节未比较。",
        ),
        cause=None,
        confidence=Confidence.NONE,
        next_step=first_to_record(of_a_step),
        not_recorded=absent,
    )


def _not_comparable(results: Sequence[RungResult], absent: tuple[Rung, ...]) -> Verdict:
    return Verdict(
        status=VerdictStatus.NOT_COMPARABLE,
        rung=None,
        finding_id=None,
        sentence=Text(
            "Nothing can be compared: no artifact was found on both sides.",
            "无法比较：没有任何一种数据同时存在于两次运行中。",
        ),
        cause=None,
        confidence=Confidence.NONE,
        next_step=first_to_record(results),
        not_recorded=absent,
    )


def first_to_record(results: Sequence[RungResult]) -> Text | None:
    """Return how to record the first missing rung."""
    return next((r.missing[0].how_to_record for r in results if r.missing), None)
