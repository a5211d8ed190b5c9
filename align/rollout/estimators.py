"""Every estimator whose advantages follow from rewards, groups and masks alone, by verl's name.

An estimator takes rewards and mask, float64 [b, w], groups, int64 [b] from 0, and settings, and
gives the advantages, float64 [b, w]: 0 outside the mask, NaN where they are rounding alone or the
framework would refuse. w is the length of a response; where all tokens of a row share their
advantage (not ``by_token``), w may be 1 and the mask the number of tokens a row has.

Source: verl 0.9.1 `core_algos.compute_*_advantage`. ReMax, GDPO and the optimal token baselines
need more than rewards, so they have no entry; GAE is `align.referee.estimates`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from align.rollout.group_advantages import (
    NO_SPREAD,
    Int64,
    Scaling,
    baselines,
    deviations,
    group_advantages,
    group_sizes,
)
from align.rollout.trained_rows import FloatArray

_VARIANCE_EPSILON = 1e-8  # of verl's masked_whiten


class Reads(str, Enum):
    """What an estimator reads besides rewards and mask; a mistake may be in each."""

    GROUPS = "groups"
    SCALING = "scaling"
    GAMMA = "gamma"
    WHITENING = "whitening"


class Whitening(str, Enum):
    """How far advantages are whitened: the mean subtracted, then divided by the std."""

    WHOLE = "whole"
    CENTRED = "centred"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration says of an estimator; each reads what it names.

    Args:
        gamma: discount per token.
    """

    scaling: Scaling = field(default_factory=lambda: Scaling(by_std=True))
    gamma: float = 1.0
    whitening: Whitening = Whitening.WHOLE


Function = Callable[[FloatArray, FloatArray, Int64, Settings], FloatArray]


@dataclass(frozen=True, slots=True)
class Estimator:
    """One estimator.

    Args:
        formula: of an advantage, as evidence quotes it; {epsilon} and {gamma} are filled in.
        by_token: the tokens of a row differ.
    """

    advantages: Function
    formula: str
    reads: frozenset[Reads]
    by_token: bool = False


def grpo(rewards: FloatArray, mask: FloatArray, groups: Int64, settings: Settings) -> FloatArray:
    """Source: `compute_grpo_outcome_advantage`, and `compute_grpo_vectorized_…`, in float32."""
    return _spread(group_advantages(_scores(rewards), groups, settings.scaling), mask)


def grpo_passk(
    rewards: FloatArray, mask: FloatArray, groups: Int64, settings: Settings
) -> FloatArray:
    """Give the best row of a group its lead over the second best, and every other row 0.

    verl refuses a group of one. Source: `compute_grpo_passk_outcome_advantage`.
    """
    scores = _scores(rewards)
    order = np.lexsort((-scores, groups))  # group by group, the best first
    first = np.flatnonzero(np.diff(groups[order], prepend=-1))
    best, second = order[first], order[np.minimum(first + 1, len(order) - 1)]
    rows: FloatArray = np.zeros(len(scores))
    rows[best] = scores[best] - scores[second]
    if settings.scaling.by_std:
        rows = rows / deviations(scores, groups, settings.scaling)
    known = np.isfinite(np.bincount(groups, scores))[groups] & (group_sizes(groups) > 1)
    return _spread(np.where(known, rows, np.nan), mask)


def rloo(rewards: FloatArray, mask: FloatArray, groups: Int64, settings: Settings) -> FloatArray:
    """Source: `compute_rloo_outcome_advantage`; a group of one keeps its raw score."""
    scores, sizes = _scores(rewards), group_sizes(groups)
    factors = np.where(sizes > 1, sizes / np.maximum(sizes - 1, 1), 1.0)
    return _spread((scores - baselines(scores, groups)) * factors, mask)


def rloo_vectorized(
    rewards: FloatArray, mask: FloatArray, groups: Int64, settings: Settings
) -> FloatArray:
    """Source: `compute_rloo_vectorized_outcome_advantage`; a group of one gets 0."""
    own = rloo(rewards, mask, groups, settings)
    return np.where(group_sizes(groups)[:, None] > 1, own, 0.0)


def opo(rewards: FloatArray, mask: FloatArray, groups: Int64, settings: Settings) -> FloatArray:
    """Subtract the group's mean score, each response counting as often as it has tokens.

    Source: `compute_opo_outcome_advantage`; a group of one keeps its raw score.
    """
    scores, lengths = _scores(rewards), mask.sum(axis=1)
    with np.errstate(invalid="ignore"):  # a group without any token
        means = np.bincount(groups, scores * lengths) / np.bincount(groups, lengths)
    return _spread(scores - np.where(group_sizes(groups) > 1, means[groups], 0.0), mask)


def gpg(rewards: FloatArray, mask: FloatArray, groups: Int64, settings: Settings) -> FloatArray:
    """Centre by group, times rows over rows of a score other than 0.

    Source: `compute_gpg_outcome_advantage`; a group of one keeps its raw score.
    """
    scores = _scores(rewards)
    factor = len(scores) / max(np.count_nonzero(scores), 1)
    return _spread(factor * (scores - baselines(scores, groups)), mask)


def reinforce_plus_plus_baseline(
    rewards: FloatArray, mask: FloatArray, groups: Int64, settings: Settings
) -> FloatArray:
    """Source: `compute_reinforce_plus_plus_baseline_outcome_advantage`."""
    scores = _scores(rewards)
    centred = _spread(scores - baselines(scores, groups), mask)
    return _whitened(centred, mask, settings.whitening, float(np.abs(scores).max(initial=0.0)))


def reinforce_plus_plus(
    rewards: FloatArray, mask: FloatArray, groups: Int64, settings: Settings
) -> FloatArray:
    """Give every token the discounted rewards from it on; masked tokens are stepped over.

    Source: `compute_reinforce_plus_plus_outcome_advantage`.
    """
    returns, after = np.zeros_like(rewards), np.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        after = np.where(mask[:, t] > 0, rewards[:, t] + settings.gamma * after, after)
        returns[:, t] = np.where(mask[:, t] > 0, after, 0.0)
    return _whitened(returns, mask, settings.whitening, float(np.abs(returns).max(initial=0.0)))


def _scores(rewards: FloatArray) -> FloatArray:
    scores: FloatArray = rewards.sum(axis=1)  # verl sums without the mask
    return scores


def _spread(rows: FloatArray, mask: FloatArray) -> FloatArray:
    return np.where(mask > 0, rows[:, None], 0.0)


def _whitened(values: FloatArray, mask: FloatArray, how: Whitening, size: float) -> FloatArray:
    """Whiten over the mask; all NaN where the spread is rounding of numbers of that size.

    Source: verl `masked_whiten`, which refuses fewer than two tokens.
    """
    count = mask.sum()
    if how is Whitening.NONE:
        return values
    if count < 2:
        return np.full_like(values, np.nan)
    centred = np.where(mask > 0, values - (values * mask).sum() / count, 0.0)
    if how is Whitening.CENTRED:
        return centred
    variance = (centred**2 * mask).sum() / (count - 1)
    if size and np.sqrt(variance) <= NO_SPREAD * size:
        return np.where(mask > 0, np.nan, 0.0)
    return np.asarray(centred / np.sqrt(variance + _VARIANCE_EPSILON))


_CENTRED = "score - mean of the prompt's scores"
_GROUPS = frozenset({Reads.GROUPS})
_SCALED = frozenset({Reads.GROUPS, Reads.SCALING})
_GRPO = Estimator(grpo, f"({_CENTRED}) / (std + {{epsilon:g}})", _SCALED)
_OTHERS = "score - mean of the prompt's other scores"

ESTIMATORS = {
    "grpo": _GRPO,
    "grpo_vectorized": _GRPO,
    "grpo_passk": Estimator(
        grpo_passk, "(best - second best of the prompt's scores) / (std + {epsilon:g})", _SCALED
    ),
    "rloo": Estimator(rloo, _OTHERS, _GROUPS),
    "rloo_vectorized": Estimator(rloo_vectorized, _OTHERS, _GROUPS),
    "opo": Estimator(opo, "score - mean of the prompt's scores by tokens", _GROUPS),
    "gpg": Estimator(gpg, f"({_CENTRED}) * rows / rows that score", _GROUPS),
    "reinforce_plus_plus_baseline": Estimator(
        reinforce_plus_plus_baseline, f"whitened {_CENTRED}", _GROUPS | {Reads.WHITENING}
    ),
    "reinforce_plus_plus": Estimator(
        reinforce_plus_plus,
        "whitened sum of the rewards to come, by γ {gamma:g}",
        frozenset({Reads.GAMMA, Reads.WHITENING}),
        by_token=True,
    ),
}
