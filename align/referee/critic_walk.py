"""Where the critics of two runs part: the first value, loss, gradient or update that differs."""

from __future__ import annotations

from itertools import zip_longest

from align.core.finding import Finding
from align.referee.critic import Critic
from align.referee.critic_distance import (
    SAME_VALUES,
    TIMES,
    limit_of,
    ratio,
    relative,
    same_multiset,
    same_targets,
)
from align.referee.critic_findings import gradient_finding, update_finding, values_finding
from align.referee.critic_updates import CriticUpdate
from align.referee.gradient_norms import SAME_NORM
from align.rollout.trainer_pair import trainer_pair


def walk(reference: Critic, candidate: Critic) -> Finding | None:
    """Go along the steps both record, from the first on."""
    steps = {update.step for update in reference.updates}
    common = sorted(steps & {update.step for update in candidate.updates})
    allowed = SAME_VALUES.value
    for number, step in enumerate(common):
        pair = trainer_pair(reference.run, candidate.run, step)
        if pair is None:
            return None
        values = pair.both("values")
        if values is not None:
            apart, limit = relative(*values, pair), limit_of(*values, pair)
            if number == 0 and apart > limit:
                return values_finding(pair, step, apart, limit)
            if apart > max(limit, allowed):
                return update_finding(reference, candidate, step, None, apart)
            allowed = max(allowed, TIMES * apart)
        if not same_targets(pair):
            return None
        found = _updates_apart(reference, candidate, step, allowed)
        if found is not None:
            return found
    return None


def _updates_apart(
    reference: Critic, candidate: Critic, step: int, allowed: float
) -> Finding | None:
    """Name the first loss or gradient of a step that differs; the rows of both are the same."""
    pairs = zip_longest(reference.of_step(step), candidate.of_step(step))
    for number, (own, other) in enumerate(pairs):
        if own is None or other is None or not _same_rows(own, other):
            return None
        apart = ratio(own.loss, other.loss)
        if apart > allowed:
            return update_finding(reference, candidate, step, number, apart) if number else None
        if own.norm is not None and other.norm is not None:
            limit = max(SAME_NORM.value, allowed)
            if ratio(own.norm, other.norm) > limit:
                return gradient_finding(own, other, step, number)
    return None


def _same_rows(own: CriticUpdate, other: CriticUpdate) -> bool:
    """Tell whether two updates learn from the same tokens: as many, and of equal targets."""
    if len(own.returns) != len(other.returns):
        return False
    return same_multiset(own.returns, other.returns) and same_multiset(own.values, other.values)
