"""What two DPO runs train on: the same pairs at each step, and the log_probs of the first one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
from torch import Tensor

from align.core.threshold import Threshold
from align.referee.gradient_norms import SAME_LOG_PROBS, SAME_NORM
from align.referee.preference_passes import (
    Pair,
    PairTokens,
    PreferencePass,
    pair_tokens,
    step_gradients,
)
from dumps.store.run_data import RunData

_EXACT = Threshold(1e-4, "float32 rounding of log_probs of some nats, times a hundred")
_TIMES = 10  # of what the other model's log_probs differ by


class PairsKind(str, Enum):
    """How the pairs of a step differ."""

    EXCHANGED = "exchanged"  # the same responses, the other one preferred
    ORDER = "order"  # pairs that the other run trains on at another step
    RESPONSES = "responses"  # the same prompts, other ids of responses
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class OtherPairs:
    """The first step at which two runs train on other pairs.

    Args:
        num_pairs: of the reference's step.
        num_other: of the candidate's, those that are none of these.
        num_elsewhere: of those, what the reference trains on at another recorded step.
        sources: a file of either run.
    """

    step: int
    kind: PairsKind
    num_pairs: int
    num_other: int
    num_elsewhere: int
    sources: tuple[str, str]


@dataclass(frozen=True, slots=True)
class LogProbsApart:
    """How far the log_probs of equal pairs are apart: mean over tokens, nats.

    Args:
        policy: None where training before this step can have moved it.
        reference: None where either run has none.
        sources: a file of either run.
    """

    step: int
    policy: float | None
    reference: float | None
    sources: tuple[str, str]

    @property
    def policy_differs(self) -> bool:
        """Whether the policies' are apart by more than rounding."""
        return _differs(self.policy, self.reference)

    @property
    def reference_differs(self) -> bool:
        """Whether the references' are apart by more than rounding."""
        return _differs(self.reference, self.policy)


@dataclass(frozen=True, slots=True)
class GradientsApart:
    """Other gradients of equal pairs and losses.

    Args:
        norms: of all gradients before clipping, in the reference and in the candidate.
        sources: a file of either run.
    """

    step: int
    norms: tuple[float, float]
    sources: tuple[str, str]


def other_pairs(
    reference: Sequence[PreferencePass], candidate: Sequence[PreferencePass]
) -> OtherPairs | None:
    """Find the first step that both record with other pairs.

    A step of which one run records a part of the other's pairs alone (ranks that were left out,
    or another batch size) shows no difference.
    """
    ours, theirs = _by_step(reference), _by_step(candidate)
    for step in sorted(ours.keys() & theirs.keys()):
        mine, other = _counted(ours[step]), _counted(theirs[step])
        if not (mine <= other or other <= mine):
            elsewhere = _counted(reference) - mine
            return _other(step, mine, other, elsewhere, (ours[step][0], theirs[step][0]))
    return None


def gradients_apart(
    reference: RunData, candidate: RunData, passes: tuple[list[PreferencePass], ...]
) -> GradientsApart | None:
    """Compare the gradients' norms at the first step that both record, where all before agrees.

    Only of equal pairs, losses and trained parameters, one rank of either run being recorded.
    """
    ours, theirs = (_by_step(own) for own in passes)
    step = min(ours.keys() & theirs.keys(), default=None)
    if step is None or _counted(ours[step]) != _counted(theirs[step]):
        return None
    losses = [_mean_loss(own[step]) for own in (ours, theirs)]
    mine, other = (step_gradients(run, step) for run in (reference, candidate))
    same = abs(losses[0] - losses[1]) <= _EXACT.value
    if not same or mine is None or other is None or mine.keys() != other.keys():
        return None
    norms = math.sqrt(sum(mine.values())), math.sqrt(sum(other.values()))
    if abs(norms[1] - norms[0]) <= SAME_NORM.value * norms[0]:
        return None
    return GradientsApart(step, norms, (ours[step][0].source, theirs[step][0].source))


def _mean_loss(passes: Iterable[PreferencePass]) -> float:
    """Return the mean over a step's pairs."""
    weighed = [(each.loss * len(each.pairs), len(each.pairs)) for each in passes]
    return sum(loss for loss, _ in weighed) / sum(count for _, count in weighed)


def log_probs_apart(
    reference: RunData, candidate: RunData, passes: tuple[list[PreferencePass], ...]
) -> LogProbsApart | None:
    """Compare the log_probs of equal pairs at the first step that both runs record."""
    ours, theirs = (_by_step(own) for own in passes)
    step = min(ours.keys() & theirs.keys(), default=None)
    if step is None:
        return None
    mine, other = (_grouped(pair_tokens(run, step)) for run in (reference, candidate))
    both = [
        pair for key in mine for pair in zip(mine[key], other.get(key, []), strict=False)
    ]  # equal pairs of a step have equal log_probs
    if not both:
        return None
    num_tokens = sum(one.num_tokens for one, _ in both)
    policy = sum(_distance(a.policy, b.policy) for a, b in both) / num_tokens
    references = [
        (a.reference, b.reference)
        for a, b in both
        if a.reference is not None and b.reference is not None
    ]
    apart = None
    if len(references) == len(both):
        apart = sum(_distance(a, b) for a, b in references) / num_tokens
    sources = (ours[step][0].source, theirs[step][0].source)
    return LogProbsApart(step, policy if step == 1 else None, apart, sources)


def reference_moved(
    passes: tuple[list[PreferencePass], ...], first: LogProbsApart
) -> LogProbsApart | None:
    """Find the first later step at which the references of equal pairs are apart.

    A reference is frozen, so that what it gives equal pairs agrees at every step, as at the first.
    """
    if first.reference is None:
        return None
    allowed = min(SAME_LOG_PROBS.value, max(_EXACT.value, _TIMES * first.reference))
    ours, theirs = (_by_step(own) for own in passes)
    for step in sorted(ours.keys() & theirs.keys()):
        mine, other = (_reference_sums(own[step]) for own in (ours, theirs))
        both = [(*mine[pair], other[pair][0]) for pair in mine.keys() & other.keys()]
        distance = sum(float((theirs_ - own).abs().sum()) for own, _, theirs_ in both)
        num_tokens = sum(length for _, length, _ in both)
        if num_tokens and not distance / num_tokens <= allowed:  # NaN neither
            sources = (ours[step][0].source, theirs[step][0].source)
            return LogProbsApart(step, None, distance / num_tokens, sources)
    return None


def _reference_sums(passes: Iterable[PreferencePass]) -> dict[Pair, tuple[Tensor, float]]:
    """Return what the reference gives both responses of each pair, [2], and their tokens."""
    found: dict[Pair, tuple[Tensor, float]] = {}
    for each in passes:
        if each.reference is not None:
            sums = each.reference.values.reshape(2, -1).T
            lengths = each.lengths.reshape(2, -1).sum(0).tolist()
            found |= dict(zip(each.pairs, zip(sums, lengths, strict=True), strict=True))
    return found


def _differs(own: float | None, other: float | None) -> bool:
    """Whether own is more than rounding, or far more than the other model's rounding is."""
    if own is None:
        return False
    by_other = np.inf if other is None else max(_EXACT.value, _TIMES * other)
    return own > min(SAME_LOG_PROBS.value, by_other)


def _by_step(passes: Iterable[PreferencePass]) -> dict[int, list[PreferencePass]]:
    found: dict[int, list[PreferencePass]] = defaultdict(list)
    for each in passes:
        found[each.step].append(each)
    return found


def _counted(passes: Iterable[PreferencePass]) -> Counter[Pair]:
    return Counter(pair for each in passes for pair in each.pairs)


def _other(
    step: int,
    mine: Counter[Pair],
    other: Counter[Pair],
    elsewhere: Counter[Pair],
    first: tuple[PreferencePass, PreferencePass],
) -> OtherPairs:
    new = other - mine
    seen = (new & elsewhere).total()
    exchanged = Counter(pair.exchanged for pair in new.elements())
    if exchanged <= mine:
        kind = PairsKind.EXCHANGED
    elif seen:
        kind = PairsKind.ORDER
    elif _prompts(new) == _prompts(mine - other):
        kind = PairsKind.RESPONSES
    else:
        kind = PairsKind.OTHER
    sources = (first[0].source, first[1].source)
    return OtherPairs(step, kind, mine.total(), new.total(), seen, sources)


def _prompts(pairs: Counter[Pair]) -> Counter[bytes]:
    return Counter(pair.prompt for pair in pairs.elements())


def _grouped(pairs: Iterable[tuple[Pair, PairTokens]]) -> Mapping[Pair, list[PairTokens]]:
    found: dict[Pair, list[PairTokens]] = defaultdict(list)
    for pair, tokens in pairs:
        found[pair].append(tokens)
    return found


def _distance(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """Return the sum of differences; infinite where NaN is against a number.

    Tokens of one run against the sums of another are compared as one sum.
    """
    if one.shape != other.shape:
        one, other = one.sum(keepdims=True), other.sum(keepdims=True)
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return float("inf")
    return float(np.nansum(np.abs(one - other)))
