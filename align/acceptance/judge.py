"""Judge a candidate under a policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from align.acceptance.curve_clauses import Runs, judge_curve, judge_task
from align.acceptance.eval_clauses import judge_evaluations
from align.acceptance.judgement import Judgement, Result, with_floor
from align.acceptance.policy import Formula, Policy
from align.acceptance.tasks import TaskCurve, task_curves
from align.curves.axis import Axis
from align.curves.pair import PairedMetric, Pairing
from dumps.store.run_data import RunData


def judge(
    reference: RunData, candidate: RunData, repeats: Sequence[RunData], policy: Policy
) -> Judgement:
    """Judge every clause of a policy, and every task by itself where it asks for that.

    Args:
        repeats: further runs of the reference with other seeds; they give the noise floor.
    """
    with np.errstate(all="ignore"):
        logs = [repeat.metrics for repeat in repeats]
        runs = Runs.of(reference.metrics, candidate.metrics, logs, policy.axis)
        results: list[Result] = []
        curves: list[PairedMetric] = []
        for clause in policy.clauses:
            if clause.formula is Formula.EVALUATION:
                results += judge_evaluations(clause, reference.evals, candidate.evals)
                continue
            result, judged = judge_curve(clause, runs, policy)
            results.append(result)
            curves += [judged] if judged is not None and len(judged) else []
        results += _tasks(reference, candidate, repeats, policy, runs) if policy.tasks else ()
    return Judgement(policy, tuple(results), curves[0] if curves else None, len(repeats))


def _curves_of(
    pairing: Pairing, reference: RunData, run: RunData, policy: Policy
) -> Iterator[TaskCurve]:
    """Yield a run's task curves; rollouts count steps, so only metrics serve another axis."""
    rollouts = (reference.rollouts, run.rollouts) if policy.axis is Axis.STEP else None
    return task_curves(pairing, rollouts, policy)


def _tasks(
    reference: RunData,
    candidate: RunData,
    repeats: Sequence[RunData],
    policy: Policy,
    runs: Runs,
) -> Iterator[Result]:
    """Yield each task's results, where there is more than one task."""
    pairings = zip((runs.pairing, *runs.repeats), (candidate, *repeats), strict=True)
    curves, *others_curves = (
        list(_curves_of(pairing, reference, run, policy)) for pairing, run in pairings
    )
    floors = [{c.task: c for c in others} for others in others_curves]
    for curve in curves if len(curves) > 1 else ():
        for clause in policy.tasks:
            result = Result(judge_task(clause, curve.metric, curve.span), task=curve.task)
            others = [known[curve.task] for known in floors if curve.task in known]
            yield with_floor(result, (judge_task(clause, o.metric, o.span).error for o in others))
