"""Judge a setting by trials that do not all say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist, fmean

from align.bisect.search import Outcome

NEAR = 0.25
"""How near to its threshold a value is doubted, as a share of the distance between the threshold
and what the ends of the plan show; used where the plan states no noise."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often a setting is tried.

    Args:
        least, most: trials of one setting.
        confidence: wanted for the majority of a doubted setting.
        noise: standard deviation of one trial's value, None where it is not known.
    """

    least: int = 1
    most: int = 5
    confidence: float = 0.9
    noise: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one trial showed. ``distance`` is that of its value from the threshold, positive for
    bad; None where there is no value.
    """

    outcome: Outcome
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """What the trials of one setting show together.

    ``confidence`` that the outcome is right; None for trials without doubt: a single one far from
    the threshold, or an exit code that was not asked to be repeated.
    """

    outcome: Outcome
    num_good: int
    num_bad: int
    num_unresolved: int
    confidence: float | None


def vote(readings: Sequence[Reading], repeats: Repeats, scale: float | None) -> Vote:
    """Return the majority and how certain it is.

    Args:
        readings: of one setting, at least one.
        scale: distance of the ends' values from the threshold; None while they are not known.
    """
    good, bad, neither = (
        sum(r.outcome is outcome for r in readings)
        for outcome in (Outcome.GOOD, Outcome.BAD, Outcome.UNRESOLVED)
    )
    if not good and not bad:
        return Vote(Outcome.UNRESOLVED, 0, 0, neither, None)
    distances = [r.distance for r in readings if r.distance is not None]
    if repeats.noise is not None and len(distances) == good + bad:
        mean = fmean(distances)
        outcome = Outcome.BAD if mean > 0 else Outcome.GOOD
        spread = repeats.noise / sqrt(len(distances))
        certain = NormalDist().cdf(abs(mean) / spread) if spread else 1.0
        return Vote(outcome, good, bad, neither, certain)
    outcome = Outcome.BAD if bad > good else Outcome.GOOD
    doubted = good + bad > 1 or any(_is_near(d, scale) for d in distances)
    certain_or_not = majority(max(good, bad), good + bad) if doubted else None
    return Vote(outcome, good, bad, neither, certain_or_not)


def needs_more(readings: Sequence[Reading], repeats: Repeats, scale: float | None) -> bool:
    """Tell whether a setting has to be tried again."""
    if len(readings) < repeats.least:
        return True
    if len(readings) >= repeats.most:
        return False
    result = vote(readings, repeats, scale)
    if result.outcome is Outcome.UNRESOLVED:
        return False
    unanimous = 0 in (result.num_good, result.num_bad)
    near = any(r.distance is not None and _is_near(r.distance, scale) for r in readings)
    if repeats.noise is None and unanimous and not near:
        return False
    return result.confidence is not None and result.confidence < repeats.confidence


def majority(most: int, total: int) -> float:
    """Return how probable it is that the greater side of a vote is the likelier one.

    Source: Bayes with a uniform prior of the share p: P(p > 1/2) is a binomial sum over n + 1.
    """
    return float(sum(comb(total + 1, i) for i in range(most + 1)) / 2 ** (total + 1))


def _is_near(distance: float, scale: float | None) -> bool:
    return scale is not None and abs(distance) < NEAR * scale
