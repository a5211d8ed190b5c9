"""Did the trainer train each response on its own score, and on scores of its own task's rules?

Both are invariants of what the files mean: a score belongs to one response, and a rule that does
not apply has no value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.finding import Evidence, Finding, Mechanism, Scalar, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.trained_rows import Place, TrainedStep, scores_by_text, trained_steps
from dumps.store.run_data import RunData

_ROUNDING = 2.0**-22  # scores are dumped as float64 and trained on as float32
_TASK = "task"
_QUOTED = 3
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def permuted(reference: RunData, candidate: RunData) -> tuple[Finding, ...]:
    """Find the run whose trainer got a step's scores in another order than its responses.

    Only where the other run's trainer inputs show the right order.
    """
    steps = {
        Side.REFERENCE: trained_steps(reference),
        Side.CANDIDATE: trained_steps(candidate),
    }
    if not all(steps.values()):
        return ()
    moved = {side: [step for step in own if moved_rows(step).any()] for side, own in steps.items()}
    sides = [side for side, own in moved.items() if own]
    return (_permuted(sides[0], moved[sides[0]], steps[sides[0]]),) if len(sides) == 1 else ()


def moved_rows(step: TrainedStep) -> npt.NDArray[np.bool_]:
    """bool [b]: rows with another row's score; none unless the step's scores are the dumped ones.

    A penalty added to the scores (KL, length) makes other scores, which is no permutation.
    """
    nowhere = np.zeros(len(step), np.bool_)
    trained, dumped = np.sort(step.trained), np.sort(step.dumped)
    if not np.isfinite(dumped).all() or not np.isclose(trained, dumped, rtol=_ROUNDING).all():
        return nowhere
    own = scores_by_text(step)
    return np.array(
        [
            not np.isclose(score, own[text], rtol=_ROUNDING).any()
            for text, score in zip(step.texts, step.trained, strict=True)
        ],
        np.bool_,
    )


def _permuted(side: Side, moved: Sequence[TrainedStep], steps: Sequence[TrainedStep]) -> Finding:
    first = moved[0]
    rows = np.flatnonzero(moved_rows(first))
    return Finding(
        id="reward.permuted",
        rung=Rung.REWARD,
        severity=Severity.ERROR,
        title=Text(
            f"the {side.value}'s trainer gets the scores in another order than the responses: "
            f"{len(rows)} of {len(first)} rows at step {first.step} ({len(moved)} of {len(steps)} "
            "steps)",
            f"{_ZH[side]}的训练器收到的得分与回复顺序不一致：第 {first.step} 步 {len(first)} 行中"
            f"有 {len(rows)} 行（{len(steps)} 步中有 {len(moved)} 步）",
        ),
        reference=len(rows) if side is Side.REFERENCE else 0,
        candidate=len(rows) if side is Side.CANDIDATE else 0,
        evidence=tuple(
            item for row in rows[:_QUOTED] for item in _score_evidence(side, first, int(row))
        ),
        why=Text(
            "The step's scores are the dumped ones, but they stand at other rows, so responses are "
            "reinforced for what others did.",
            "该步的得分与记录的得分完全相同，但对应到了别的行，因此回复会因其他回复的表现而被强化。",
        ),
        fix=Text(
            "Look where scores and responses are joined (sorting by length, asynchronous reward "
            "workers, a re-ordered batch) and join them by uid.",
            "检查得分与回复合并之处（按长度排序、异步奖励进程、重排的 batch），并改为按 uid 合并。",
        ),
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC),
    )


def _score_evidence(side: Side, step: TrainedStep, row: int) -> tuple[Evidence, Evidence]:
    source, line = step.places[row]
    return (
        Evidence(source, side, line=line, key="score", values=(float(step.dumped[row]),)),
        Evidence(
            step.source,
            side,
            key=f"token_level_rewards[{row}]",
            values=(float(step.trained[row]),),
        ),
    )


@dataclass(frozen=True, slots=True)
class RuleScores:
    """The scores one rule gave the responses of one task.

    Args:
        num_absent: rows on which the rule does not apply.
        values: the scores of the other rows, each once.
        place: of the first row.
    """

    num_absent: int
    values: frozenset[float]
    place: Place


def not_applicable_as_zero(reference: RunData, candidate: RunData) -> tuple[Finding, ...]:
    """Find rules that score 0 on tasks for which the other run says they do not apply."""
    ours, theirs = rule_scores(reference), rule_scores(candidate)
    found = []
    for key in sorted(ours.keys() & theirs.keys()):
        for side, zero, absent, whole in (
            (Side.CANDIDATE, theirs[key], ours[key], ours),
            (Side.REFERENCE, ours[key], theirs[key], theirs),
        ):
            applies = any(rule == key[1] and scores.values for (_, rule), scores in whole.items())
            if applies and not absent.values and zero.values == {0.0} and not zero.num_absent:
                found.append((key, side, zero, absent))
    return (_as_zero(found),) if found else ()


def rule_scores(data: RunData) -> Mapping[tuple[str, str], RuleScores]:
    """Return what each rule gave by task and rule: fields with null in some rows of a dump."""
    values: dict[tuple[str, str], set[float]] = defaultdict(set)
    absent: dict[tuple[str, str], int] = defaultdict(int)
    places: dict[tuple[str, str], Place] = {}
    for batch in data.rollout_batches():
        tasks = batch.extras.get(_TASK)
        for rule, column in batch.extras.items():
            if tasks is None or not _is_scores(column):
                continue
            for task, value, line in zip(tasks, column, batch.lines, strict=True):
                key = str(task), rule
                places.setdefault(key, (batch.source, int(line)))
                if value is None:
                    absent[key] += 1
                else:
                    values[key].add(float(value))
    return {key: RuleScores(absent[key], frozenset(values[key]), places[key]) for key in places}


def _is_scores(column: Sequence[Scalar]) -> bool:
    return all(
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        for value in column
    )


def _as_zero(found: Sequence[tuple[tuple[str, str], Side, RuleScores, RuleScores]]) -> Finding:
    (task, rule), side, zero, absent = found[0]
    other = Side.REFERENCE if side is Side.CANDIDATE else Side.CANDIDATE
    all_of = ", ".join(f"{rule}: {task}" for (task, rule), _, _, _ in found)
    return Finding(
        id="reward.not_applicable_as_zero",
        rung=Rung.REWARD,
        severity=Severity.WARNING,
        title=Text(
            f"the {side.value} scores 0 where a rule does not apply ({all_of})",
            f"{_ZH[side]}在规则不适用之处记为 0 分（{all_of}）",
        ),
        reference=0.0 if side is Side.REFERENCE else None,
        candidate=0.0 if side is Side.CANDIDATE else None,
        evidence=(
            Evidence(zero.place[0], side, line=zero.place[1], key=rule, values=(0.0,)),
            Evidence(absent.place[0], other, line=absent.place[1], key=rule, values=(None,)),
        ),
        why=Text(
            f"{rule} has no value for task {task}; zeros averaged in make the rule's mean follow "
            "the mix of tasks, and an average over rules smaller.",
            f"{rule} 对任务 {task} 没有意义；把 0 计入平均会使该规则的均值随任务配比变化，"
            "并压低多规则的平均分。",
        ),
        fix=Text(
            "Leave a rule that does not apply out of its mean (null, not 0) on both sides.",
            "在两侧都让不适用的规则不参与其均值（记为 null 而不是 0）。",
        ),
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC, signature=("rewards/*", f"*{rule}*")),
    )
