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
_NO_SPREAD = 1e-5  # of the scores' size: float32 rounding over epsilon is no advantage


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a group's centred scores are divided by.

    Args:
        by_std: False is Dr.GRPO (verl `norm_adv_by_std_in_grpo: false`).
        epsilon: added to the std; 1e-4 in TRL.
    """

    by_std: bool
    epsilon: float = 1e-6


def group_advantages(scores: FloatArray, groups: Int64, scaling: Scaling) -> FloatArray:
    """float64 [b]: the advantage of each row; NaN where a group's spread is rounding alone.

    Args:
        scores: float64 [b].
        groups: int64 [b], from 0.
    """
    by_std, epsilon = scaling.by_std, scaling.epsilon
    sizes = np.bincount(groups)
    means = np.bincount(groups, scores) / sizes
    centred = scores - means[groups]
    variances = np.bincount(groups, centred**2) / np.maximum(sizes - 1, 1)
    stds = np.sqrt(variances)
    size = np.zeros(len(sizes))
    np.maximum.at(size, groups, np.abs(scores))
    rounding = (stds > 0) & (stds <= _NO_SPREAD * size)
    advantages = centred / (stds[groups] + epsilon) if by_std else centred
    alone = sizes[groups] == 1
    advantages = np.where(alone, scores / (1 + epsilon) if by_std else scores, advantages)
    return np.where(rounding[groups], np.nan, advantages)


def differing_rows(step: TrainedStep, groups: Int64, scaling: Scaling) -> BoolArray:
    """bool [b]: rows whose recorded advantage is not the recomputed one."""
    return differs_from(step, group_advantages(step.trained, groups, scaling))


def differs_from(step: TrainedStep, expected: FloatArray) -> BoolArray:
    """bool [b]: rows of which some recorded advantage is not the expected one, where that is known.

    Args:
        expected: float64 [b], NaN where it is not.
    """
    assert step.least is not None and step.greatest is not None
    tolerance = TOLERANCE.value * np.maximum(1.0, np.abs(expected))
    judged = np.isfinite(expected) & np.isfinite(step.least)  # an empty response has no token
    far = (np.abs(step.least - expected) > tolerance) | (
        np.abs(step.greatest - expected) > tolerance
    )
    differs: BoolArray = judged & far
    return differs


def prompt_groups(step: TrainedStep) -> Int64:
    """int64 [b]: one group a prompt."""
    groups: Int64 = np.unique(np.array(step.groups), return_inverse=True)[1].astype(np.int64)
    return groups
