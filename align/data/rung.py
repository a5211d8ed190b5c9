"""Data rung: did both runs see the same prompts, step by step?

Rollout dumps decide where both sides have them: prompt texts are compared as hashes. Else the
prompt length statistics of the metrics are compared, which is strong evidence but no proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from align.core.figure import Column, Table
from align.core.finding import Finding, Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.data import findings
from align.data.constant_edit import find_constant_edit
from align.data.dynamic_order import dynamic_sampling, is_asynchronous
from align.data.ground_truths import differing_ground_truths
from align.data.lost_findings import lost_findings
from align.data.lost_rows import find_lost_rows
from align.data.order_cause import (
    Effective,
    Replay,
    cause_of_lengths,
    cause_of_prompts,
    run_orders,
)
from align.data.order_diff import OrderCause
from align.data.predicted import or_predicted, with_data_sets
from align.data.prompt_lengths import PromptLengths, compare_lengths, first_difference
from align.data.prompt_order import PromptOrder, StepPrompts, compare_prompts
from align.data.prompt_text import Prompts
from dumps.store.rollout_pair import RolloutPair, pair_rollouts
from dumps.store.run_data import RunData

_SAMPLES = 256  # prompts read again to look for a template; a batch is seldom larger
_QUOTED = 2
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def compare(
    reference: RunData,
    candidate: RunData,
    effective: Effective | None = None,
    prompts: Prompts | None = None,
) -> RungResult:
    """Compare the rows both runs were given.

    Args:
        effective: resolves a run's configuration; with it rows that differ are explained by
            replaying both samplers.
        prompts: loads a run's tokenizer; with it rows are compared as they are rendered, and
            length filters by what they keep.
    """
    replay = None if effective is None else Replay(effective, prompts)
    seen = _seen(reference, candidate, _Explain((reference, candidate), replay))
    orders = run_orders((reference, candidate), replay)
    if orders is None:
        return seen
    predicted = _order_unless_dynamic(or_predicted(seen, orders), reference, candidate)
    return with_data_sets(predicted, orders)


def _seen(reference: RunData, candidate: RunData, explain: _Explain) -> RungResult:
    if len(reference.rollouts) and len(candidate.rollouts):
        pair = pair_rollouts(reference.rollouts, candidate.rollouts)
        order = compare_prompts(pair)
        if order is not None:
            return _order_unless_dynamic(_by_prompts(pair, order, explain), reference, candidate)
    lengths = compare_lengths(reference.metrics, candidate.metrics)
    if lengths:
        return _order_unless_dynamic(
            _by_lengths(lengths, reference, candidate, explain), reference, candidate
        )
    return _missing(reference, candidate)


@dataclass(frozen=True, slots=True)
class _Explain:
    """Says why rows differ, when it is asked: replaying a sampler takes its time."""

    runs: tuple[RunData, RunData]
    replay: Replay | None

    def prompts(self, pair: RolloutPair, first: StepPrompts) -> OrderCause | None:
        return cause_of_prompts(pair, self.runs, self.replay, first.step, first.num_common)

    def lengths(self, step: int) -> OrderCause | None:
        return cause_of_lengths(self.runs, self.replay, step)

    @property
    def rows_are_chosen(self) -> bool:
        """Whether which rows a step has depends on more than a shuffle of the data set."""
        orders = run_orders(self.runs, self.replay) or ()
        return _why_dynamic(*self.runs) is not None or any(o.settings.chooses_rows for o in orders)


def _by_prompts(pair: RolloutPair, order: PromptOrder, explain: _Explain) -> RungResult:
    first = order.first_divergent
    truths = differing_ground_truths(pair)
    tables = (_order_table(order),)
    how = Text("", "")
    if pair.steps_inferred:
        how = Text(
            f" The {pair.steps_inferred.value}'s dump has no step; it was split in file order, "
            "which the prompts confirm.",
            f"{_ZH[pair.steps_inferred]}的数据没有 step 字段，按文件顺序切分，并由 prompt 证实。",
        )
    if first is None:
        steps = order.steps
        return RungResult(
            name=Rung.DATA,
            status=RungStatus.DIVERGED if truths else RungStatus.ALIGNED,
            summary=Text(
                f"The same prompt texts at each of {len(steps)} common steps "
                f"({steps[0].step} to {steps[-1].step}).{how.en}",
                f"{len(steps)} 个共同的步（第 {steps[0].step} 至 {steps[-1].step} 步）"
                f"的 prompt 文本完全相同。{how.zh}",
            ),
            findings=truths,
            tables=tables,
        )
    template = _template(pair, order)
    causes = (template,) if template else _other_rows(pair, order, first, explain)
    title = causes[0].title
    return RungResult(
        name=Rung.DATA,
        status=RungStatus.DIVERGED,
        summary=Text(f"{_sentence(title.en)}{how.en}", f"{title.zh}。{how.zh}"),
        findings=(*causes, *truths),
        tables=tables,
    )


def _other_rows(
    pair: RolloutPair, order: PromptOrder, first: StepPrompts, explain: _Explain
) -> tuple[Finding, ...]:
    """Say that rows are lost, or that the same ones come in another order."""
    finding, cause = _order(pair, order), explain.prompts(pair, first)
    lost = () if explain.rows_are_chosen else find_lost_rows(pair)
    if lost and (cause is None or cause.is_hint):
        return lost_findings(lost, (pair.reference.index, pair.candidate.index), finding)
    return (findings.with_cause(finding, cause),)


def _order(pair: RolloutPair, order: PromptOrder) -> Finding:
    return findings.order_by_prompts(
        order,
        pair.reference.index.texts(order.only_reference[:_QUOTED]),
        pair.candidate.index.texts(order.only_candidate[:_QUOTED]),
    )


def _template(pair: RolloutPair, order: PromptOrder) -> Finding | None:
    ours = pair.reference.index.texts(order.only_reference[:_SAMPLES])
    theirs = pair.candidate.index.texts(order.only_candidate[:_SAMPLES])
    edit = find_constant_edit([row.prompt for row in ours], [row.prompt for row in theirs])
    return None if edit is None else findings.template_by_prompts(edit, ours[0], theirs[0])


def _by_lengths(
    lengths: tuple[PromptLengths, ...],
    reference: RunData,
    candidate: RunData,
    explain: _Explain,
) -> RungResult:
    first = first_difference(lengths)
    names = ", ".join(pair.reference.name for pair in lengths)
    num_steps = max(len(pair.steps) for pair in lengths)
    if first is None:
        return _equal_lengths(lengths, names, num_steps)
    for shift in (1, -1):
        shifted = compare_lengths(reference.metrics, candidate.metrics, shift=shift)
        if _prove_same_rows(shifted):
            return _equal_but_counted_otherwise(names, len(shifted[0].steps), shift)
    finding = _template_by_lengths(lengths) or findings.with_cause(
        findings.order_by_lengths(*first), explain.lengths(first[0])
    )
    return RungResult(
        name=Rung.DATA,
        status=RungStatus.DIVERGED,
        summary=Text(_sentence(finding.title.en), f"{finding.title.zh}。"),
        findings=(finding,),
    )


def _prove_same_rows(lengths: tuple[PromptLengths, ...]) -> bool:
    """Tell whether two series that start at different step numbers are one and the same."""
    if not lengths or len(lengths[0].steps) < 3:
        return False
    both_start_here = all(pair.reference_at[0] == pair.candidate_at[0] == 0 for pair in lengths)
    constant = all(pair.is_constant for pair in lengths)
    return both_start_here and not constant and first_difference(lengths) is None


def _template_by_lengths(lengths: tuple[PromptLengths, ...]) -> Finding | None:
    """Recognise one offset of mean and minimum at every step; a maximum may meet the limit."""
    offsets = {pair.reference.name: pair.constant_offset for pair in lengths}
    mean, low = offsets.get("prompt_length/mean"), offsets.get("prompt_length/min")
    if mean is None or low is None or abs(mean - low) > 2 * float(lengths[0].resolution.max()):
        return None
    return findings.template_by_lengths(lengths[0], mean)


def _equal_lengths(lengths: tuple[PromptLengths, ...], names: str, num_steps: int) -> RungResult:
    if all(pair.is_constant for pair in lengths):
        return RungResult(
            name=Rung.DATA,
            status=RungStatus.UNDECIDED,
            summary=Text(
                f"{names} are the same constants at all {num_steps} common steps: prompts of equal "
                "length in any order would give them, so they say nothing about the order.",
                f"{names} 在全部 {num_steps} 个共同的步都是同样的常数："
                "任何顺序的等长 prompt 都会如此，因此无法说明数据顺序。",
            ),
            missing=(missing_artifact(Rung.DATA),),
        )
    return RungResult(
        name=Rung.DATA,
        status=RungStatus.ALIGNED,
        summary=Text(
            f"{names} are equal at all {num_steps} common steps, as far as they were printed: very "
            "likely the same rows in the same order. Lengths are statistics, not proof; rollout "
            "dumps would show the prompts themselves.",
            f"{names} 在全部 {num_steps} 个共同的步均相同（以打印精度为限）："
            "样本与顺序很可能一致。长度只是统计量，并非证明；rollout 数据才能给出 prompt 本身。",
        ),
    )


def _equal_but_counted_otherwise(names: str, num_steps: int, shift: int) -> RungResult:
    return RungResult(
        name=Rung.DATA,
        status=RungStatus.ALIGNED,
        summary=Text(
            f"{names} are equal at all {num_steps} common steps once {shift:+d} is added to the "
            "candidate's step numbers: very likely the same rows; the two runs count steps from "
            "another number.",
            f"把被测的步号加 {shift:+d} 后，{names} 在全部 {num_steps} 个共同的步均相同："
            "样本很可能一致，只是两次运行的步号起点不同。",
        ),
    )


def _order_unless_dynamic(result: RungResult, reference: RunData, candidate: RunData) -> RungResult:
    """Take back an order finding where the rows of a step depend on scores or on timing."""
    reason = _why_dynamic(reference, candidate)
    order = [f for f in result.findings if f.id.startswith("data.order.")]
    if reason is None or not order:
        return result
    others = tuple(f for f in result.findings if f not in order)
    return replace(
        result,
        status=RungStatus.DIVERGED if others else RungStatus.UNDECIDED,
        findings=others,
        summary=Text(f"{result.summary.en} {reason.en}", f"{result.summary.zh}{reason.zh}"),
    )


def _why_dynamic(reference: RunData, candidate: RunData) -> Text | None:
    setting = dynamic_sampling(reference) or dynamic_sampling(candidate)
    if setting is not None:
        place = f"{setting.provenance.source}:{setting.provenance.line}"
        return Text(
            f"But {setting.key} is on ({place}): prompts are dropped by their scores, so two "
            "runs with the same order keep different ones.",
            f"但 {setting.key} 已开启（{place}）：prompt 会按得分被丢弃，"
            "顺序相同的两次运行也会留下不同的 prompt。",
        )
    if is_asynchronous(reference) or is_asynchronous(candidate):
        return Text(
            "But a run is fully asynchronous: which prompts a step trains on depends on timing.",
            "但其中一次是全异步训练：每步训练哪些 prompt 取决于时序。",
        )
    return None


def _missing(reference: RunData, candidate: RunData) -> RungResult:
    lacking = [
        name
        for name, data in (("reference", reference), ("candidate", candidate))
        if not len(data.rollouts) and not _has_lengths(data)
    ]
    side = lacking[0] if len(lacking) == 1 else "both"
    return RungResult(
        name=Rung.DATA,
        status=RungStatus.MISSING,
        summary=Text(
            "Not compared: prompts or prompt lengths of common steps are lacking.",
            "未比较：缺少共同的步的 prompt 或 prompt 长度。",
        ),
        missing=(missing_artifact(Rung.DATA, side),),
    )


def _has_lengths(data: RunData) -> bool:
    return data.metrics.get("prompt_length/mean") is not None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _order_table(order: PromptOrder) -> Table:
    columns = (
        Column("step", Text("step", "步"), numeric=True),
        Column("reference", Text("prompts, reference", "prompt 数（参考）"), numeric=True),
        Column("candidate", Text("prompts, candidate", "prompt 数（被测）"), numeric=True),
        Column("common", Text("in common", "相同的 prompt 数"), numeric=True),
        Column("same", Text("same", "是否一致")),
    )
    rows: Sequence[tuple[int, int, int, int, bool]] = [
        (s.step, s.num_reference, s.num_candidate, s.num_common, s.same) for s in order.steps
    ]
    return Table("data.prompts", Text("Prompts per step", "每步的 prompt"), columns, tuple(rows))
