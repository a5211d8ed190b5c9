"""Clauses about curves: judged on the candidate, and on the reference's repeats for the floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from align.acceptance.judgement import Result, with_floor
from align.acceptance.policy import Clause, Formula, Policy
from align.core.metric import MetricLog
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.accept import absolute_error, convergence_error, horizon_of, reward_span
from align.curves.axis import Axis, kept, realigned
from align.curves.criterion import Criterion, Outcome
from align.curves.error_formulas import failing_steps, mean_error, seed_band
from align.curves.pair import FloatArray, PairedMetric, Pairing, pair_logs

Judge = Callable[[PairedMetric], Criterion]
_ANY = Threshold(math.inf, source="no limit: the repeats set it")


@dataclass(frozen=True, slots=True)
class Runs:
    """The reference, its repeats and the candidate, paired; metrics of all of them."""

    pairing: Pairing
    repeats: tuple[Pairing, ...]  # reference against each repeat
    among_repeats: tuple[Pairing, ...]  # each repeat against each other

    @classmethod
    def of(
        cls,
        reference: MetricLog,
        candidate: MetricLog,
        repeats: Sequence[MetricLog],
        axis: Axis = Axis.STEP,
    ) -> Runs:
        """Pair every run with the reference, and the repeats with each other.

        Raises:
            RunError: A run does not record what the axis is made of.
        """
        if axis is not Axis.STEP:
            candidate, *repeats = (realigned(reference, r, axis) for r in (candidate, *repeats))
            reference = kept(reference)
        return cls(
            pair_logs(reference, candidate),
            tuple(pair_logs(reference, repeat) for repeat in repeats),
            tuple(pair_logs(a, b) for a, b in combinations(repeats, 2)),
        )


def judge_curve(clause: Clause, runs: Runs, policy: Policy) -> tuple[Result, PairedMetric | None]:
    """Judge one clause; the curve it was judged on is None where it is not recorded."""
    if clause.formula is Formula.COVERAGE:
        return Result(coverage(runs.pairing, policy)), None
    metric = _first(runs.pairing, clause.metrics)
    if metric is None:
        return Result(not_recorded(clause)), None
    judged = _cut(runs.pairing, metric, policy)
    pairings = (*runs.repeats, *runs.among_repeats)
    others = [m for p in pairings if (m := _same(p, metric.name, policy)) is not None]
    if clause.formula is Formula.SEED_BAND:
        least = Threshold(clause.least_runs, source=policy.source)
        return Result(seed_band(judged, _levels(judged, runs, policy), least)), judged
    judge = _judge_of(clause, reward_span(runs.pairing))
    floors = [judge(other).error for other in others]
    result = with_floor(Result(judge(judged)), floors)
    return (result if clause.limit or clause.tolerance else _by_floor(result)), judged


def coverage(pairing: Pairing, policy: Policy) -> Criterion:
    """Say whether the runs are as long as the policy asks: 24 h or 500 steps, say."""
    longest = max(pairing.training, key=len, default=None)
    asked, complete = (0, False)
    if longest is not None:
        asked, complete = horizon_of(pairing, longest, _steps(policy), policy.limit_s)
    num = 0 if longest is None else min(len(longest), asked)
    hours, steps = policy.limit_s / 3600, policy.num_steps
    share = 1 - num / asked if asked else 1.0
    return Criterion(
        name="coverage",
        subject="",
        reference=float(asked),
        candidate=float(num),
        error=share,
        low=share,
        high=share,
        scale=float(asked),
        limit=Threshold(0.0, source=policy.source),
        outcome=Outcome.PASS if complete else Outcome.UNDECIDED,
        formula=Text(
            f"share missing of min({hours:g} h, {steps:g} steps), in steps both runs recorded",
            f"相对于 min({hours:g} 小时, {steps:g} 步) 所缺的比例，按两侧都记录的步计算",
        ),
        num_steps=num,
    )


def not_recorded(clause: Clause) -> Criterion:
    """Return the criterion of a clause whose curve no or only one run recorded."""
    names = ", ".join(clause.metrics)
    return Criterion(
        name=clause.formula.value,
        subject=clause.metrics[0] if clause.metrics else "",
        reference=math.nan,
        candidate=math.nan,
        error=math.nan,
        low=math.nan,
        high=math.nan,
        scale=math.nan,
        limit=clause.limit or _ANY,
        outcome=Outcome.MISSING,
        formula=Text(
            f"not judged: both runs have to record one of {names}",
            f"未判定：两侧都需要记录以下指标之一：{names}",
        ),
    )


def judge_task(clause: Clause, metric: PairedMetric, span: float | None) -> Criterion:
    """Judge one task's curve."""
    return _judge_of(clause, span)(metric.finite_only())


def _judge_of(clause: Clause, span: float | None) -> Judge:
    limit = clause.limit or _ANY
    judges: Mapping[Formula, Judge] = {
        Formula.ABSOLUTE_ERROR: lambda m: absolute_error(m, span, limit),
        Formula.CONVERGENCE_ERROR: lambda m: convergence_error(m, limit),
        Formula.MEAN_ERROR: lambda m: mean_error(m, limit),
        Formula.FAILING_STEPS: lambda m: failing_steps(m, clause.tolerance),
    }
    return judges[clause.formula]


def _by_floor(result: Result) -> Result:
    """Judge against the repeats themselves; without repeats nothing is decided."""
    criterion = result.criterion
    if not math.isfinite(result.floor):
        outcome = Outcome.UNDECIDED
        remark: Text | None = Text(
            "the limit is what repeats of the reference differ by: add --repeat RUN",
            "限值取自参考各次运行之间的差异：请添加 --repeat RUN",
        )
    else:
        outcome = Outcome.PASS if criterion.error <= result.floor else Outcome.UNDECIDED
        outcome = Outcome.FAIL if criterion.low > result.floor else outcome
        remark = None
    limit = Threshold(result.floor, source="greatest error among repeats of the reference")
    return replace(
        result, criterion=replace(criterion, limit=limit, outcome=outcome), remark=remark
    )


def _first(pairing: Pairing, names: Sequence[str]) -> PairedMetric | None:
    return next((m for name in names if (m := pairing.get(name)) is not None), None)


def _same(pairing: Pairing, name: str, policy: Policy) -> PairedMetric | None:
    metric = pairing.get(name)
    return None if metric is None else _cut(pairing, metric, policy)


def _cut(pairing: Pairing, metric: PairedMetric, policy: Policy) -> PairedMetric:
    """Return a metric at the steps that acceptance judges, where both sides are numbers."""
    horizon, _ = horizon_of(pairing, metric, _steps(policy), policy.limit_s)
    return metric.where(np.arange(len(metric)) < horizon).finite_only()


def _steps(policy: Policy) -> float:
    return min(policy.num_steps, 2.0**62)


def _levels(judged: PairedMetric, runs: Runs, policy: Policy) -> list[FloatArray]:
    metrics = (_same(pairing, judged.name, policy) for pairing in runs.repeats)
    return [m.candidate for m in metrics if m is not None and len(m)]
