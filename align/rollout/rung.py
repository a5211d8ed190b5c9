"""Rollout rung: are the responses comparable, sane, and of one distribution where they must be?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from align.core.config_value import EffectiveConfig, ProvenanceKind
from align.core.finding import Finding, Severity, Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.rollout import findings
from align.rollout.asked import mismatches
from align.rollout.asked_findings import asked_findings
from align.rollout.cut import cut_finding, cut_responses
from align.rollout.groups import incomplete_groups
from align.rollout.moved import first_moved, moved_finding
from align.rollout.near import NearPairs, near_pairs
from align.rollout.permutation import FAMILY
from align.rollout.sanity_findings import (
    configured_otherwise,
    incomplete_finding,
    sick_finding,
)
from align.rollout.shift import (
    LENGTH,
    STATISTICS,
    Responses,
    Tested,
    common_responses,
    first_later_shift,
    judge_first_step,
)
from align.rollout.sick import sick_alone
from align.rollout.step_stats import StepStats, step_stats, steps_table, tasks_table
from align.rollout.unpaired import unpaired_table
from dumps.store.rollout_pair import RolloutPair, SideRows, group_size, pair_rollouts
from dumps.store.run_data import RunData

# verl and MindSpeed-RL count from 1, verl before 0.3 from 0: up to there nothing was trained.
_INITIAL_STEPS = (0, 1)
_STATED = (ProvenanceKind.PRINTED, ProvenanceKind.OVERRIDE, ProvenanceKind.FILE)
_WHERE = {
    "reference": Text("in the reference", "参考"),
    "candidate": Text("in the candidate", "被测"),
    "both": Text("on either side", "两侧都"),
}


def compare(
    reference: RunData,
    candidate: RunData,
    effective: Callable[[RunData], EffectiveConfig] | None = None,
) -> RungResult:
    """Compare what both runs generated, step by step.

    Args:
        effective: resolves a run's configuration (`align.config.normalise.effective`); None holds
            no group size against it.
    """
    lacking = [
        name
        for name, data in (("reference", reference), ("candidate", candidate))
        if not len(data.rollouts)
    ]
    if lacking:
        side = lacking[0] if len(lacking) == 1 else "both"
        return RungResult(
            name=Rung.ROLLOUT,
            status=RungStatus.MISSING,
            summary=Text(
                f"Not compared: no rollout dump {_WHERE[side].en}.",
                f"未比较：{_WHERE[side].zh}没有 rollout 数据。",
            ),
            missing=(missing_artifact(Rung.ROLLOUT, side),),
        )
    exact = pair_rollouts(reference.rollouts, candidate.rollouts)
    if not exact.common_steps:
        return _no_common_step()
    runs = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    asked = asked_findings([mismatches(side, data) for side, data in runs])
    pair = exact.by_question()
    configs = [None if effective is None else effective(data) for _, data in runs]
    return _compare(pair, (*asked, *_of_one_run(pair, configs)))


def _compare(pair: RolloutPair, own: Sequence[Finding]) -> RungResult:
    steps, near = step_stats(pair), near_pairs(pair)
    responses = common_responses(pair)
    initial = len(responses.steps) and responses.steps[0] in _INITIAL_STEPS
    tested = judge_first_step(responses) if initial else ()
    found = _ordered((*own, *_structure(pair), *_shifts(pair, responses, tested)))
    named = {finding.id for finding in found}
    found += tuple(f for f in _sick(pair) if f.id not in named)
    diverged = any(finding.severity is Severity.ERROR for finding in found)
    tables = (steps_table(steps), tasks_table(pair), unpaired_table(pair))
    return RungResult(
        name=Rung.ROLLOUT,
        status=RungStatus.DIVERGED if diverged else RungStatus.ALIGNED,
        summary=_summary(pair, steps, near, tested, found),
        findings=found,
        tables=tuple(table for table in tables if table is not None),
    )


def _ordered(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Put what explains before what shows, and errors before the rest."""
    return tuple(sorted(found, key=lambda f: (f.severity.rank, f.mechanism is None)))


def _of_one_run(
    pair: RolloutPair, configs: Sequence[EffectiveConfig | None]
) -> tuple[Finding, ...]:
    """Hold each run's groups against its own configuration and against each other."""
    found, incomplete = [], []
    sides = ((Side.REFERENCE, pair.reference), (Side.CANDIDATE, pair.candidate))
    for (side, rows), config in zip(sides, configs, strict=True):
        stated = None if config is None else config.values.get("rollout.n")
        observed = group_size(rows)
        if stated is not None and observed is not None and type(stated.value) is int:
            own = stated.raw.provenance.kind in _STATED
            if own and stated.value != observed and not rows.index.num_skipped:
                found.append(configured_otherwise(side, rows, stated.raw, stated.value, observed))
        incomplete.append(incomplete_groups(side, rows))
    alone = [odd for odd in incomplete if odd is not None]
    if len(alone) == 1:
        found.append(incomplete_finding(pair, alone[0]))
    return tuple(found)


def _sick(pair: RolloutPair) -> tuple[Finding, ...]:
    return tuple(sick_finding(pair, sick) for sick in sick_alone(pair))


def _structure(pair: RolloutPair) -> tuple[Finding, ...]:
    moved = first_moved(pair)
    if moved is not None:
        return (moved_finding(moved),)
    sizes = (group_size(pair.reference), group_size(pair.candidate))
    if sizes[0] and sizes[1] and sizes[0] != sizes[1]:
        return (findings.other_group_size(pair, sizes[0], sizes[1]),)
    counts = (_constant_count(pair.reference), _constant_count(pair.candidate))
    if counts[0] and counts[1] and counts[0] != counts[1]:
        return (findings.other_count(pair, counts[0], counts[1]),)
    cut = cut_responses(pair)
    return () if cut is None else (cut_finding(pair, cut),)


def _constant_count(rows: SideRows) -> int | None:
    """Return rows per step where all steps agree; the last may have been cut off."""
    counts = np.unique(rows.step[rows.step >= 0], return_counts=True)[1]
    if rows.index.num_skipped or not len(counts):
        return None
    full = counts[:-1] if len(counts) > 1 and counts[-1] < counts[0] else counts
    return int(full[0]) if (full == full[0]).all() else None


def _shifts(
    pair: RolloutPair, responses: Responses, tested: Sequence[Tested]
) -> tuple[Finding, ...]:
    beyond = [test for test in tested if test.beyond_chance]
    found = [findings.first_step_shift(pair, test) for test in beyond]
    for statistic in STATISTICS:
        if any(test.statistic is statistic for test in beyond):
            continue
        later = first_later_shift(responses, statistic)
        if later is not None and statistic.degenerate:
            found.append(findings.degenerate(pair, later))
        elif later is not None:
            found.append(findings.later_shift(pair, later))
    return tuple(found)


def _summary(
    pair: RolloutPair,
    steps: Sequence[StepStats],
    near: NearPairs,
    tested: Sequence[Tested],
    found: Sequence[Finding],
) -> Text:
    same = sum(step.num_same_responses for step in steps)
    smaller = sum(min(s.reference.num_rows, s.candidate.num_rows) for s in steps)
    scale = Text(
        f"{smaller} responses a side at {len(steps)} common steps; {same} are the same word by "
        "word.",
        f"{len(steps)} 个共同的步、每侧 {smaller} 条回复，其中 {same} 条逐字相同。",
    )
    scale = _joined(scale, _nearly(near), _not_read(pair))
    errors = [finding for finding in found if finding.severity is Severity.ERROR]
    if errors:
        title = errors[0].title
        return Text(f"{title.en[:1].upper()}{title.en[1:]}. {scale.en}", f"{title.zh}。{scale.zh}")
    verdict = _power(tested)
    return Text(f"{scale.en} {verdict.en}", f"{scale.zh}{verdict.zh}")


def _joined(*parts: Text | None) -> Text:
    given = [part for part in parts if part is not None]
    return Text(" ".join(part.en for part in given), "".join(part.zh for part in given))


def _nearly(near: NearPairs) -> Text | None:
    """Say how many responses are nearly the same, and where they part."""
    if not near.pairs:
        return None
    at = near.first_difference
    return Text(
        f"Of {near.num_compared} others {len(near.pairs)} are nearly the same; half of those part "
        f"before character {at:g}, as rounding under greedy decoding does.",
        f"其余 {near.num_compared} 条中有 {len(near.pairs)} 条近似相同，"
        f"其中一半在第 {at:g} 个字符之前开始不同，贪心解码下的舍入误差即是如此。",
    )


def _not_read(pair: RolloutPair) -> Text | None:
    """Say what of the dumps could not be used."""
    indices = (pair.reference.index, pair.candidate.index)
    skipped = [index.num_skipped for index in indices]
    places = [place for index in indices for place in index.skipped][:1]
    notes = [note for index in indices for note in index.notes if "no numbers" in note][:1]
    if not any(skipped) and not notes:
        return None
    first = (*places, *notes)[0]
    return Text(
        f"Not read: {skipped[0]} and {skipped[1]} lines; first: {first}.",
        f"未读取：参考 {skipped[0]} 行，被测 {skipped[1]} 行；首个：{first}。",
    )


def _power(tested: Sequence[Tested]) -> Text:
    """Say what the test at the first step could have seen."""
    length = next((test for test in tested if test.statistic is LENGTH), None)
    if length is None:
        return Text(
            "No step before the first update has prompts common to both, so distributions were "
            "not tested; counts and sanity were.",
            "第一次更新之前的步没有共同的 prompt，因此未检验分布，只检查了数量与异常。",
        )
    percent = f"{FAMILY.value:.1%}"
    error = length.shift.standard_error
    return Text(
        f"At step {length.step} lengths, scores, empty, looping and broken responses are alike "
        f"(mean length {length.reference:.1f} against {length.candidate:.1f} characters, standard "
        f"error {error:.2g}; chance of a false alarm {percent}).",
        f"第 {length.step} 步的长度、得分以及空回复、循环、损坏回复均无差异"
        f"（平均长度：参考 {length.reference:.1f} 字符，被测 {length.candidate:.1f} 字符，"
        f"标准误 {error:.2g}；误报概率 {percent}）。",
    )


def _no_common_step() -> RungResult:
    return RungResult(
        name=Rung.ROLLOUT,
        status=RungStatus.UNDECIDED,
        summary=Text(
            "Both runs have rollout dumps but no step in common: either a dump has no step field "
            "and cannot be split by the other's prompts, or different steps were dumped.",
            "两侧都有 rollout 数据，但没有共同的步：可能是数据没有 step 字段"
            "且无法按另一侧的 prompt 切分，也可能记录的步不同。",
        ),
        missing=(missing_artifact(Rung.ROLLOUT),),
    )
