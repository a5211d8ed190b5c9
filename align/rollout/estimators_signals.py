"""What an estimator takes of a trained step, and the advantages recorded beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.rollout.estimators import Estimator, Settings
from align.rollout.group_advantages import TOLERANCE, BoolArray, Int64, prompt_groups
from align.rollout.trained_rows import FloatArray, TrainedStep, token_signals


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """One step, a column a token; or one column where all tokens of a row share their advantage.

    Args:
        rewards: float64 [b, w].
        mask: float64 [b, w], how many tokens a place stands for.
        groups: int64 [b], one a prompt.
        least, greatest: float64 [b, w], of the recorded advantages; infinite where there is none.
    """

    rewards: FloatArray
    mask: FloatArray
    groups: Int64
    least: FloatArray
    greatest: FloatArray

    def expected(self, estimator: Estimator, settings: Settings) -> FloatArray:
        """float64 [b, w]: the advantages that the estimator gives."""
        return estimator.advantages(self.rewards, self.mask, self.groups, settings)

    def judged(self, expected: FloatArray) -> BoolArray:
        """bool [b, w]: places with an advantage that is recorded and known."""
        known: BoolArray = np.isfinite(expected) & np.isfinite(self.least)
        return known

    def differing(self, expected: FloatArray) -> BoolArray:
        """bool [b, w]: judged places of which a recorded advantage is not the expected one."""
        far = apart(self.least, expected) | apart(self.greatest, expected)
        return self.judged(expected) & far


def signals_of(step: TrainedStep, estimator: Estimator) -> Signals:
    """Return a step's signals, every token's where the estimator tells the tokens of a row apart.

    Args:
        step: with advantages.
    """
    assert step.least is not None and step.greatest is not None
    groups = prompt_groups(step)
    if estimator.by_token:
        rewards, mask, advantages = token_signals(step)
        return Signals(rewards, mask, groups, advantages, advantages)
    columns = (step.trained, step.lengths, step.least, step.greatest)
    rewards, mask, least, greatest = (column[:, None] for column in columns)
    return Signals(rewards, mask, groups, least, greatest)


def apart(one: FloatArray, other: FloatArray) -> BoolArray:
    """bool, of their shape: numbers further apart than rounding."""
    with np.errstate(invalid="ignore"):  # what is infinite is not judged
        far: BoolArray = np.abs(one - other) > TOLERANCE.value * np.maximum(1.0, np.abs(other))
    return far
