"""Which task carries a difference of the reward."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dumps.store.rollout_pair import RolloutPair, SideRows

_ALPHA = 0.01  # of calling any task different by chance; shared among the tasks (Bonferroni)


@dataclass(frozen=True, slots=True)
class TaskShift:
    """One task's mean score on both sides.

    Args:
        error: standard error of the difference, prompts of a step taken as independent.
        share: of the difference of the mean over all rows; the shares add up to 1.
        beyond_noise: the difference is beyond its error, all tasks considered.
    """

    task: str
    reference: float
    candidate: float
    error: float
    share: float
    beyond_noise: bool

    @property
    def difference(self) -> float:
        """Candidate less reference."""
        return self.candidate - self.reference


def task_shifts(pair: RolloutPair, first_step: int | None) -> tuple[TaskShift, ...] | None:
    """Return every task's shift from a step on, the greatest share first.

    None where the rows have no tasks or no scores.
    """
    sides = [_scored(side, first_step) for side in (pair.reference, pair.candidate)]
    names = sorted(set(sides[0].index.tasks) & set(sides[1].index.tasks))
    found = []
    for name in names:
        means = [_means(side, name) for side in sides]
        if all(len(values) > 1 for values in means):
            num_rows = sum(int(_is_of(side, name).sum()) for side in sides)
            found.append((name, means, num_rows))
    if not found:
        return None
    shifts = [float(m[1].mean() - m[0].mean()) for _, m, _ in found]
    total = sum(shift * rows for shift, (_, _, rows) in zip(shifts, found, strict=True))
    limit = NormalDist().inv_cdf(1 - _ALPHA / (2 * len(found)))
    made = [
        TaskShift(
            name,
            float(means[0].mean()),
            float(means[1].mean()),
            error := float(np.sqrt(sum(m.var(ddof=1) / len(m) for m in means))),
            shift * num_rows / total if total else 0.0,
            abs(shift) > limit * error,
        )
        for shift, (name, means, num_rows) in zip(shifts, found, strict=True)
    ]
    return tuple(sorted(made, key=lambda item: (-abs(item.share), item.task)))


def _scored(rows: SideRows, first_step: int | None) -> SideRows:
    kept = ~np.isnan(rows.score)
    if first_step is not None:
        kept &= rows.step >= first_step
    return rows.take(kept)


def _is_of(rows: SideRows, task: str) -> npt.NDArray[np.bool_]:
    of_task: npt.NDArray[np.bool_] = rows.index.task[rows.row] == rows.index.tasks.index(task)
    return of_task


def _means(rows: SideRows, task: str) -> npt.NDArray[np.float64]:
    """Return the mean score of every prompt of every step: responses to one prompt are alike."""
    chosen = rows.take(_is_of(rows, task))
    if not len(chosen):
        return np.zeros(0)
    groups = np.unique(np.stack([chosen.step, chosen.prompt]), axis=1, return_inverse=True)[1]
    groups = groups.reshape(-1)
    return np.bincount(groups, chosen.score) / np.bincount(groups)
