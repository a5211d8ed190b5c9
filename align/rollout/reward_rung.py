"""Reward rung: the same response to the same prompt must get the same score.

Rule rewards are functions of prompt, response and ground truth, so one pair that disagrees shows a
different rule. A run that scores the same text differently by itself (a reward model, a sampled
judge) has no such function and is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.recording import missing_artifact
from align.core.rung import Missing, Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.threshold import Threshold
from align.rollout.reward_recompute import permuted_by_rule
from align.rollout.reward_rows import not_applicable_as_zero, permuted
from dumps.store.rollout_index import Int64
from dumps.store.rollout_pair import RolloutPair, SideRows, pair_rollouts
from dumps.store.run_data import RunData

SCORE_REL = Threshold(
    2.0**-22,
    source="float32 rounding: verl's V1 trainer stores scores in float32, V0 prints float64",
)
_WHERE = {
    "reference": Text("in the reference", "参考"),
    "candidate": Text("in the candidate", "被测"),
    "both": Text("on either side", "两侧都"),
}
_SEVERAL = 4
_FIX_ORDER = Text(
    "Join scores to responses by uid and number, not by place: look at what reorders rows between "
    "the reward function and the trainer.",
    "按 uid 与序号而不是位置合并得分与回复：检查奖励函数与训练器之间重排行的代码。",
)
_FIX_RULE = Text(
    "Score the quoted responses with both reward functions and make answer extraction, "
    "format rules, weights of several rules and length penalties equal.",
    "用两侧的奖励函数给引用的回复打分，统一答案抽取、格式规则、多规则权重与长度惩罚。",
)
_QUOTED = 3
_QUOTE = 200


@dataclass(frozen=True, slots=True, eq=False)
class ScorePairs:
    """Texts that both sides scored: one row of each side, and which scores disagree."""

    reference: SideRows
    candidate: SideRows
    differs: npt.NDArray[np.bool_]
    is_a_rule: bool  # neither side contradicts itself
    are_moved: bool = False  # the candidate's scores are the reference's, of other responses


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Compare the scores of equal responses, and what each trainer made of its scores."""
    result = _compare_scores(reference, candidate)
    moved = permuted(reference, candidate) or permuted_by_rule(
        reference.rollouts, candidate.rollouts
    )
    rows = (*moved, *not_applicable_as_zero(reference, candidate))
    if not rows:
        return result
    title = rows[0].title
    return replace(
        result,
        status=RungStatus.DIVERGED,
        summary=Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。"),
        findings=(*rows, *result.findings),
        missing=(),
    )


def _compare_scores(reference: RunData, candidate: RunData) -> RungResult:
    lacking = [
        name
        for name, data in (("reference", reference), ("candidate", candidate))
        if np.isnan(data.rollouts.score).all()
    ]
    if lacking:
        side = lacking[0] if len(lacking) == 1 else "both"
        return RungResult(
            name=Rung.REWARD,
            status=RungStatus.MISSING,
            summary=Text(
                f"Not compared: no scores {_WHERE[side].en}.",
                f"未比较：{_WHERE[side].zh}没有得分。",
            ),
            missing=(missing_artifact(Rung.REWARD, side),),
        )
    return _judge(pair_scores(pair_rollouts(reference.rollouts, candidate.rollouts)))


def pair_scores(pair: RolloutPair) -> ScorePairs:
    """Find texts both sides scored; steps do not matter, a rule has no memory."""
    with_truth = all((side.ground_truth >= 0).any() for side in (pair.reference, pair.candidate))
    scored = [_scored(side) for side in (pair.reference, pair.candidate)]
    keys = _keys(scored, with_truth)
    firsts, steady = [], True
    for side, key in zip(scored, keys, strict=True):
        unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        steady &= not _differ(side.score, side.score[first][inverse]).any()
        firsts.append((unique, first))
    _, at_a, at_b = np.intersect1d(firsts[0][0], firsts[1][0], return_indices=True)
    reference = scored[0].take(firsts[0][1][at_a])
    candidate = scored[1].take(firsts[1][1][at_b])
    differs = _differ(reference.score, candidate.score)
    moved = bool(differs.any()) and _are_moved(pair)
    return ScorePairs(reference, candidate, differs, steady, moved)


def _scored(side: SideRows) -> SideRows:
    return side.take(~np.isnan(side.score) & (side.prompt >= 0))


def _keys(sides: list[SideRows], with_truth: bool) -> list[Int64]:
    """Number (prompt, response[, ground truth]) alike on both sides."""
    key = np.zeros(sum(map(len, sides)), np.int64)
    for name in ("prompt", "response", "ground_truth") if with_truth else ("prompt", "response"):
        column = np.concatenate([getattr(side, name) for side in sides]) + 1
        key = key * (column.max(initial=0) + 1) + column
        key = np.unique(key, return_inverse=True)[1]  # compact again, so that nothing overflows
    return [key[: len(sides[0])], key[len(sides[0]) :]]


def _differ(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    equal = np.isclose(a, b, rtol=SCORE_REL.value, atol=0.0)
    return np.logical_not(equal)


def _judge(pairs: ScorePairs) -> RungResult:
    total, differing = len(pairs.differs), int(pairs.differs.sum())
    if not total:
        return _no_equal_response()
    if differing and not pairs.is_a_rule:
        return RungResult(
            name=Rung.REWARD,
            status=RungStatus.UNDECIDED,
            summary=Text(
                f"{differing} of {total} equal responses have other scores, but a run also gives "
                "equal responses different scores by itself: the score is no fixed rule.",
                f"{total} 条相同回复中有 {differing} 条得分不同，"
                "但同一次运行内部相同回复的得分也不一致：得分不是确定性规则。",
            ),
        )
    if differing:
        finding = _finding(pairs, differing, total)
        return RungResult(
            name=Rung.REWARD,
            status=RungStatus.DIVERGED,
            summary=Text(
                f"{finding.title.en[:1].upper()}{finding.title.en[1:]}.", f"{finding.title.zh}。"
            ),
            findings=(finding,),
        )
    return RungResult(
        name=Rung.REWARD,
        status=RungStatus.ALIGNED,
        summary=Text(
            f"All {total} responses that both runs gave word by word have the same score.",
            f"两次运行逐字相同的 {total} 条回复得分全部一致。",
        ),
    )


def _finding(pairs: ScorePairs, differing: int, total: int) -> Finding:
    worst = np.flatnonzero(pairs.differs)
    gaps = np.abs(pairs.candidate.score[worst] - pairs.reference.score[worst])
    worst = worst[np.argsort(-gaps, kind="stable")]
    first = int(worst[0])
    title = Text(
        f"the same response gets another score: {differing} of {total} equal responses",
        f"相同的回复得分不同：{total} 条相同回复中有 {differing} 条",
    )
    if pairs.are_moved:
        title = Text(
            f"the same scores stand on other responses: {differing} of {total} equal responses",
            f"相同的得分对应到了别的回复：{total} 条相同回复中有 {differing} 条",
        )
    return Finding(
        id="reward.permuted" if pairs.are_moved else "reward.same_response_other_score",
        rung=Rung.REWARD,
        severity=Severity.ERROR,
        title=title,
        reference=float(pairs.reference.score[first]),
        candidate=float(pairs.candidate.score[first]),
        evidence=(
            *_quotes(pairs.reference, worst[:_QUOTED], Side.REFERENCE),
            *_quotes(pairs.candidate, worst[:_QUOTED], Side.CANDIDATE),
        ),
        why=Text(
            "The two runs reward different behaviour, so their curves differ from the first step "
            "on, whatever else is aligned.",
            "两次运行奖励的行为不同，因此无论其他环节是否对齐，曲线从第一步起就不同。",
        ),
        fix=_FIX_ORDER if pairs.are_moved else _FIX_RULE,
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC),
    )


def _are_moved(pair: RolloutPair) -> bool:
    """Tell whether the steps whose responses are the same ones have the same scores, in any order.

    Only of scores of several values: right and wrong answers can be as many by chance.
    """
    steps = [
        (own, other)
        for _, own, other in pair.by_step()
        if np.array_equal(np.sort(own.response), np.sort(other.response))
    ]
    values = np.concatenate([own.score for own, _ in steps]) if steps else np.empty(0)
    return len(np.unique(values)) >= _SEVERAL and not any(
        _differ(np.sort(own.score), np.sort(other.score)).any() for own, other in steps
    )


def _quotes(rows: SideRows, which: Int64, side: Side) -> tuple[Evidence, ...]:
    texts = rows.index.texts(rows.row[which])
    return tuple(
        Evidence(
            source=text.source,
            side=side,
            line=text.line,
            key="response",
            text=text.response.replace("\n", "\\n")[:_QUOTE],
            values=(float(score),),
        )
        for text, score in zip(texts, rows.score[which], strict=True)
    )


def _no_equal_response() -> RungResult:
    return RungResult(
        name=Rung.REWARD,
        status=RungStatus.MISSING,
        summary=Text(
            "Not compared: no response was given word by word by both runs, as is usual when both "
            "sample.",
            "未比较：两次运行没有逐字相同的回复，各自采样时通常如此。",
        ),
        missing=(
            Missing(
                Text("equal responses scored by both runs", "两侧都打过分的相同回复"),
                "both",
                Text(
                    "Score the reference's dumped responses with the candidate's reward function "
                    "and dump them with prompt, response and score.",
                    "用被测的奖励函数给参考已记录的回复打分，"
                    "并连同 prompt、response、得分一起记录下来。",
                ),
            ),
        ),
    )
