"""GRPO's advantages, recomputed from the scores the trainer used.

Restates `align.objective.advantages.grpo` (verl 0.9.1 `compute_grpo_outcome_advantage`) in NumPy:
(score - mean of its group) / (std of its group + 1e-6), the std with Bessel's correction; a group
of one keeps its raw score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.text import Text
from align.core.threshold import Threshold
from align.rollout.trained_rows import FloatArray, TrainedStep

Int64 = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

EPSILON = 1e-6
TOLERANCE = Threshold(2.0**-7, source="two bfloat16 roundings of an advantage (2^-8 each)")
_NO_SPREAD = 1e-5  # of the scores' size: float32 rounding over epsilon is no advantage


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Another way of forming groups, tried where prompts do not explain the advantages.

    Args:
        what: which rows it compares with each other.
        groups: int64 [b].
    """

    what: Text
    groups: Int64


def group_advantages(scores: FloatArray, groups: Int64, *, by_std: bool) -> FloatArray:
    """float64 [b]: the advantage of each row; NaN where a group's spread is rounding alone.

    Args:
        scores: float64 [b].
        groups: int64 [b], from 0.
        by_std: False is Dr.GRPO (verl `norm_adv_by_std_in_grpo: false`).
    """
    sizes = np.bincount(groups)
    means = np.bincount(groups, scores) / sizes
    centred = scores - means[groups]
    variances = np.bincount(groups, centred**2) / np.maximum(sizes - 1, 1)
    stds = np.sqrt(variances)
    size = np.zeros(len(sizes))
    np.maximum.at(size, groups, np.abs(scores))
    rounding = (stds > 0) & (stds <= _NO_SPREAD * size)
    advantages = centred / (stds[groups] + EPSILON) if by_std else centred
    alone = sizes[groups] == 1
    advantages = np.where(alone, scores / (1 + EPSILON) if by_std else scores, advantages)
    return np.where(rounding[groups], np.nan, advantages)


def differing_rows(step: TrainedStep, groups: Int64, *, by_std: bool) -> BoolArray:
    """bool [b]: rows whose recorded advantage is not the recomputed one."""
    assert step.least is not None and step.greatest is not None
    expected = group_advantages(step.trained, groups, by_std=by_std)
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


def other_grouping(steps: Sequence[TrainedStep], *, by_std: bool) -> Text | None:
    """Name the wrong grouping that gives every recorded advantage of all steps, if one does."""
    tried = [list(_groupings(step)) for step in steps]
    for at in range(min(map(len, tried), default=0)):
        fits = (
            not differing_rows(step, groupings[at].groups, by_std=by_std).any()
            for step, groupings in zip(steps, tried, strict=True)
        )
        if all(fits):
            return tried[0][at].what
    return None


def _groupings(step: TrainedStep) -> Iterator[Grouping]:
    row = np.arange(len(step))
    sizes = np.bincount(prompt_groups(step))
    n = int(sizes[0])
    if len(step) % n or (sizes != n).any():
        return
    yield Grouping(
        Text(f"rows i, i + {n}, i + {2 * n}, …", f"第 i、i + {n}、i + {2 * n}…行"), row % n
    )
    num_prompts = len(step) // n
    yield Grouping(
        Text(f"rows i, i + {num_prompts}, …", f"第 i、i + {num_prompts}…行"), row % num_prompts
    )
    yield Grouping(Text(f"every {n} neighbouring rows", f"每 {n} 个相邻行"), row // n)
    yield Grouping(Text("the whole batch", "整个 batch"), np.zeros(len(step), np.int64))
