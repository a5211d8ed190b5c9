"""GRPO's advantages, recomputed from the scores the trainer used.

Restates `align.objective.advantages.grpo` (verl 0.9.1 `compute_grpo_outcome_advantage`) in NumPy:
(score - mean of its group) / (std of its group + 1e-6), the std with Bessel's correction; a group
of one keeps its raw score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.threshold import Threshold
from align.rollout.trained_rows import FloatArray, TrainedStep

Int64 = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

TOLERANCE = Threshold(2.0**-7, source="two bfloat16 roundings of an advantage (2^-8 each)")
NO_SPREAD = 1e-5  # of the scores' size: float32 rounding over epsilon is no advantage


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a group's centred scores are divided by.

    Args:
        by_std: False is Dr.GRPO (verl `norm_adv_by_std_in_grpo: false`).
        epsilon: added to the std; 1e-4 in TRL.
        bessel: False is the std of a whole population, as no framework takes it.
        whole_batch: True is one std for all rows.
    """

    by_std: bool
    epsilon: float = 1e-6
    bessel: bool = True
    whole_batch: bool = False


def group_advantages(scores: FloatArray, groups: Int64, scaling: Scaling) -> FloatArray:
    """float64 [b]: the advantage of each row; NaN where a group's spread is rounding alone.

    Args:
        scores: float64 [b].
        groups: int64 [b], from 0.
    """
    if scaling.whole_batch:
        return (scores - group_means(scores, groups)) / deviations(scores, groups, scaling)
    centred = scores - baselines(scores, groups)
    advantages = centred / deviations(scores, groups, scaling) if scaling.by_std else centred
    return np.where(_rounding_alone(scores, groups, scaling), np.nan, advantages)


def group_means(scores: FloatArray, groups: Int64) -> FloatArray:
    """float64 [b]: the mean score of each row's group."""
    means: FloatArray = (np.bincount(groups, scores) / np.bincount(groups))[groups]
    return means


def baselines(scores: FloatArray, groups: Int64) -> FloatArray:
    """float64 [b]: the mean score of each row's group, 0 for a group of one, as in verl."""
    return np.where(group_sizes(groups) == 1, 0.0, group_means(scores, groups))


def group_sizes(groups: Int64) -> Int64:
    """int64 [b]: how many rows the group of each row has."""
    sizes: Int64 = np.bincount(groups)[groups]
    return sizes


def deviations(scores: FloatArray, groups: Int64, scaling: Scaling) -> FloatArray:
    """float64 [b]: std of each row's group plus epsilon; NaN where it is rounding alone.

    The std of a group of one is 1, as in verl.
    """
    if scaling.whole_batch:
        return np.full(len(scores), scores.std(ddof=1) + scaling.epsilon)
    stds = np.where(group_sizes(groups) == 1, 1.0, _stds(scores, groups, scaling))
    return np.where(_rounding_alone(scores, groups, scaling), np.nan, stds + scaling.epsilon)


def _stds(scores: FloatArray, groups: Int64, scaling: Scaling) -> FloatArray:
    """float64 [b]: std of each row's group, 0 in a group of one."""
    sizes = np.bincount(groups)
    squares = np.bincount(groups, (scores - group_means(scores, groups)) ** 2)
    stds: FloatArray = np.sqrt(squares / np.maximum(sizes - scaling.bessel, 1))[groups]
    return stds


def _rounding_alone(scores: FloatArray, groups: Int64, scaling: Scaling) -> BoolArray:
    size = np.zeros(groups.max(initial=-1) + 1)
    np.maximum.at(size, groups, np.abs(np.nan_to_num(scores)))
    stds = _stds(scores, groups, scaling)
    alone: BoolArray = (stds > 0) & (stds <= NO_SPREAD * size[groups])
    return alone


def prompt_groups(step: TrainedStep) -> Int64:
    """int64 [b]: one group a prompt."""
    groups: Int64 = np.unique(np.array(step.groups), return_inverse=True)[1].astype(np.int64)
    return groups
