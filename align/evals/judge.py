"""Is a difference within 1 % or 2 %, beyond it, or can these questions not tell?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from align.evals.pair import EvalPair, Z

# Field acceptance: 1 % for the same weights on both engines, 2 % for both trained models.
TOLERANCES = {"inference": 0.01, "trained": 0.02}
FALSE_ALARMS = 0.01  # of calling a difference real, over all tasks of one comparison (Bonferroni)


class Standing(str, Enum):
    """A difference against a tolerance, with its 95 % interval."""

    WITHIN = "within"
    BEYOND = "beyond"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One pair's difference in absolute points of the share.

    Args:
        standing: per tolerance.
        is_real: the difference is not a matter of which questions were drawn.
        questions_needed: per side, for the 95 % interval to fit the tolerance; None where it does,
            or where no number of questions decides, as the difference lies on the tolerance.
    """

    pair: EvalPair
    standing: dict[str, Standing]
    is_real: bool
    questions_needed: dict[str, int | None]


def judge(pairs: Sequence[EvalPair]) -> list[Judgement]:
    """Judge every share; metrics in other units have no tolerance in points."""
    shares = [p for p in pairs if p.reference.score.is_share and p.candidate.score.is_share]
    threshold = _two_sided_z(FALSE_ALARMS / max(1, len(shares)))
    return [_judge(pair, threshold) for pair in shares]


def cancelling(judgements: Sequence[Judgement]) -> list[tuple[str, Judgement, Judgement]]:
    """Return groups whose total hides a real gain and a real loss: (group, gain, loss)."""
    parts: dict[str, list[Judgement]] = defaultdict(list)
    for found in judgements:
        group = found.pair.reference.score.group
        if group is not None and found.is_real:
            parts[group].append(found)
    hidden = []
    for group, members in parts.items():
        gain = max(members, key=lambda j: j.pair.difference)
        loss = min(members, key=lambda j: j.pair.difference)
        if gain.pair.difference > 0 > loss.pair.difference:
            hidden.append((group, gain, loss))
    return hidden


def at_chance(pair: EvalPair) -> tuple[bool, bool]:
    """Tell for each side whether its score is what guessing gives, within two errors."""
    sides = []
    for side in (pair.reference, pair.candidate):
        known = pair.chance is not None and side.stderr is not None
        sides.append(
            known
            and abs(side.score.value - (pair.chance or 0)) <= 2 * (side.stderr or 0)
            and bool(side.questions is None or side.questions >= 100)
        )
    return sides[0], sides[1]


def _judge(pair: EvalPair, threshold: float) -> Judgement:
    difference, error = abs(pair.difference), pair.stderr
    standing, needed = {}, {}
    for name, tolerance in TOLERANCES.items():
        standing[name] = _standing(difference, error, tolerance)
        needed[name] = _questions(pair, tolerance) if standing[name] is Standing.UNDECIDED else None
    real = error is not None and error > 0 and difference > threshold * error
    return Judgement(pair, standing, real, needed)


def _standing(difference: float, error: float | None, tolerance: float) -> Standing:
    if error is None:
        return Standing.UNDECIDED
    if difference - Z * error > tolerance:
        return Standing.BEYOND
    return Standing.WITHIN if difference + Z * error <= tolerance else Standing.UNDECIDED


def _questions(pair: EvalPair, tolerance: float) -> int | None:
    """Questions a side so that the half width of the interval is the distance to the tolerance."""
    p = (pair.reference.score.value + pair.candidate.score.value) / 2
    distance = abs(tolerance - abs(pair.difference))
    if distance == 0 or not 0 < p < 1:
        return None
    asked, error = pair.candidate.questions, pair.stderr
    if pair.is_paired and asked and error:
        return math.ceil(asked * (Z * error / distance) ** 2)
    return math.ceil(2 * p * (1 - p) * (Z / distance) ** 2)


def _two_sided_z(level: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(1 - level / 2)
