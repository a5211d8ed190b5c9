"""The reward of each task over steps: an average hides the one task that got worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from align.acceptance.policy import Policy
from align.core.metric import MetricSeries
from align.curves.pair import BoolArray, PairedMetric, Pairing, pair_series
from dumps.store.rollout_index import RolloutIndex

_FAMILIES = (("", "_rewards/mean"), ("rewards/", "/mean"))  # MindSpeed-RL's and TRL's functions


@dataclass(frozen=True, slots=True)
class TaskCurve:
    """One task's reward on both sides; ``span`` is the width of its scale, None if unknown."""

    task: str
    metric: PairedMetric
    span: float | None


def task_curves(
    pairing: Pairing, rollouts: tuple[RolloutIndex, RolloutIndex] | None, policy: Policy
) -> Iterator[TaskCurve]:
    """Yield tasks by name: from scored rollouts that name theirs, else from metrics of a family.

    Args:
        rollouts: of the reference and the candidate; None where they do not count.
    """
    of_rollouts = [] if rollouts is None else list(_of_rollouts(*rollouts))
    for curve in of_rollouts or _of_metrics(pairing):
        within = np.arange(len(curve.metric)) < policy.num_steps
        yield TaskCurve(curve.task, curve.metric.where(within), curve.span)


def _of_rollouts(reference: RolloutIndex, candidate: RolloutIndex) -> Iterator[TaskCurve]:
    for task in sorted(set(reference.tasks) & set(candidate.tasks)):
        ours, theirs = (_series(index, task) for index in (reference, candidate))
        if len(ours) and len(theirs):
            scores = reference.score[_rows(reference, task)]
            span = float(np.ptp(scores)) or None
            yield TaskCurve(task, pair_series(ours, theirs), span)


def _of_metrics(pairing: Pairing) -> Iterator[TaskCurve]:
    for metric in pairing.training:
        for before, after in _FAMILIES:
            name = metric.name.removeprefix(before).removesuffix(after)
            if metric.name == f"{before}{name}{after}" and name:
                yield TaskCurve(name, metric, None)
                break


def _rows(index: RolloutIndex, task: str) -> BoolArray:
    found: BoolArray = (
        (index.task == index.tasks.index(task)) & np.isfinite(index.score) & (index.step >= 0)
    )
    return found


def _series(index: RolloutIndex, task: str) -> MetricSeries:
    """Average a task's scores by step."""
    rows = _rows(index, task)
    steps, where = np.unique(index.step[rows], return_inverse=True)
    counts = np.bincount(where, minlength=len(steps))
    sums = np.bincount(where, weights=index.score[rows], minlength=len(steps))
    name = f"score of task {task}"
    zeros = np.zeros(len(steps))
    return MetricSeries(
        name=name,
        spelling=name,
        source=index.sources[0] if index.sources else "rollouts",
        steps=steps.astype(np.int64),
        values=sums / np.maximum(counts, 1),
        resolution=zeros,
        lines=zeros.astype(np.int64),
    )
