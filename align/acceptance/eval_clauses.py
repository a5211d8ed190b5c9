"""Clauses about benchmark results: each score both runs have, and the mean of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from align.acceptance.judgement import Result
from align.acceptance.policy import Clause
from align.core.evaluation import EvalResults
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.criterion import Criterion, Outcome, decide
from align.evals.pair import EvalPair, Z, pair_scores, variants_of


def judge_evaluations(
    clause: Clause, reference: Sequence[EvalResults], candidate: Sequence[EvalResults]
) -> Iterator[Result]:
    """Judge the difference of every share, in absolute points, with its sampling error."""
    assert clause.limit is not None
    variants = variants_of(reference), variants_of(candidate)
    chosen = tuple(found[0] if len(found) == 1 else None for found in variants)
    pairs, _ = pair_scores(reference, candidate, (chosen[0], chosen[1]))
    shares = [p for p in pairs if p.reference.score.is_share and p.candidate.score.is_share]
    if not shares:
        yield Result(_not_recorded(clause.limit))
    for pair in shares:
        yield Result(_criterion(pair, clause.limit))


def _criterion(pair: EvalPair, limit: Threshold) -> Criterion:
    error, stderr = abs(pair.difference), pair.stderr
    reach = math.inf if stderr is None else Z * stderr
    low, high = max(error - reach, 0.0), error + reach
    counts = [side.questions for side in (pair.reference, pair.candidate)]
    repeats = pair.candidate.score.repeats
    return Criterion(
        name="evaluation",
        subject=pair.name,
        reference=pair.reference.score.value,
        candidate=pair.candidate.score.value,
        error=error,
        low=low,
        high=high,
        scale=1.0,
        limit=limit,
        outcome=decide(low, high, limit.value),
        formula=_formula(counts, repeats, _interval(pair)),
    )


def _interval(pair: EvalPair) -> Text | None:
    """Say what the interval is of; None where the sampling error is not known."""
    if pair.stderr is None:
        return None
    if pair.is_paired:
        return Text(
            "scatter of the differences question by question", "按两侧逐题差异的离散程度计算误差"
        )
    return Text("sampling error of independent questions", "按题目相互独立计算抽样误差")


def _formula(counts: Sequence[int | None], repeats: int, interval: Text | None) -> Text:
    if interval is None:
        return Text(
            "|candidate - reference| in points; the number of questions is not known, so nothing "
            "can be said about its sampling error",
            "|被测 − 参考|，按分数点计；题目数量未知，因此无法给出抽样误差",
        )
    asked = " / ".join(str(count) for count in counts)
    return Text(
        f"|candidate - reference| in points over {asked} questions, mean of {repeats} answers "
        f"each; 95 % interval: {interval.en}",
        f"|被测 − 参考|，按分数点计，题目数 {asked}，每题 {repeats} 次作答取平均；"
        f"95% 区间：{interval.zh}",
    )


def _not_recorded(limit: Threshold) -> Criterion:
    return Criterion(
        name="evaluation",
        subject="",
        reference=math.nan,
        candidate=math.nan,
        error=math.nan,
        low=math.nan,
        high=math.nan,
        scale=math.nan,
        limit=limit,
        outcome=Outcome.MISSING,
        formula=Text(
            "not judged: no benchmark result of one task on both sides; add the result files of "
            "lm-eval, OpenCompass, evalscope or AISBench to both run folders",
            "未判定：两侧没有同一任务的评测结果；请把 lm-eval、OpenCompass、evalscope 或 AISBench "
            "的结果文件放入两侧的运行目录",
        ),
    )
