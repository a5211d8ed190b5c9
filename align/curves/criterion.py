"""One error against its limit, with its interval: pass, fail or undecided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist

from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.noise import FAMILY_ALPHA, standard_error
from align.curves.pair import FloatArray, PairedMetric

MIN_STEPS = Threshold(
    30, source="ten blocks of n^(1/3) = 3 steps, the least a block bootstrap is drawn from"
)
SURE = Threshold(
    1 - FAMILY_ALPHA.value,
    source="each of the report's two criteria fails one clean pair in 200 from above, both "
    "together one in a hundred",
)
POWER = Threshold(0.8, source="the usual power of a planned experiment (Cohen 1988)")


class Outcome(str, Enum):
    """What an interval says about a limit."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    TOO_SHORT = "too short"
    MISSING = "not recorded"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One error against its limit.

    Args:
        name: of the formula, such as "absolute_error" or "convergence_error".
        subject: vocabulary name of the metric, or task and metric of an evaluation.
        reference, candidate: means over the steps the error is taken of.
        error, low, high: fraction of ``scale`` with its 95 % interval; NaN where too short.
        scale: the denominator.
        formula: what was computed, with window, denominator and block length.
        num_steps: that the error is taken of; 0 where it is not taken of steps.
        detectable: smallest lasting error that these steps would show; see `detectable_error`.
        sure: the wider interval that a report needs to call the runs different; see `SURE`.
    """

    name: str
    subject: str
    reference: float
    candidate: float
    error: float
    low: float
    high: float
    scale: float
    limit: Threshold
    outcome: Outcome
    formula: Text
    num_steps: int = 0
    detectable: float = math.nan
    sure: tuple[float, float] = (math.nan, math.nan)

    @property
    def surely_fails(self) -> bool:
        """Whether all of the wider interval is above the limit."""
        return self.sure[0] > self.limit.value


def decide(low: float, high: float, limit: float) -> Outcome:
    """Compare an interval with a limit."""
    if high <= limit:
        return Outcome.PASS
    return Outcome.FAIL if low > limit else Outcome.UNDECIDED


def criterion_of(
    name: str,
    steps: PairedMetric,
    *,
    error: float,
    bounds: tuple[float, float],
    scale: float,
    limit: Threshold,
    formula: Text,
    sure: tuple[float, float] = (math.nan, math.nan),
) -> Criterion:
    """Divide by the denominator and decide; a curve that is 0 throughout has no relative error."""
    relative = [
        0.0 if v == 0 else v / scale if scale else math.inf for v in (error, *bounds, *sure)
    ]
    return Criterion(
        name=name,
        subject=steps.name,
        reference=float(steps.reference.mean()),
        candidate=float(steps.candidate.mean()),
        error=relative[0],
        low=relative[1],
        high=relative[2],
        scale=scale,
        limit=limit,
        outcome=decide(relative[1], relative[2], limit.value),
        formula=formula,
        num_steps=len(steps),
        detectable=detectable_error(steps.candidate - steps.reference, scale),
        sure=(relative[3], relative[4]),
    )


def detectable_error(difference: FloatArray, scale: float) -> float:
    """Return the smallest lasting error that 8 of 10 pairs of this noise would show at 95 %.

    Args:
        difference: float64 [n], candidate - reference; its noise is autocorrelated.
        scale: the denominator.

    Source: (z_0.975 + z_0.8) standard errors, the textbook formula of a two-sided test.
    """
    if len(difference) < 3:
        return math.nan
    z = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(POWER.value)
    error = z * standard_error(difference)[0]
    return 0.0 if error == 0 else error / scale if scale else math.inf


def too_short(name: str, subject: str, steps: PairedMetric | None, limit: Threshold) -> Criterion:
    """Return the criterion of a curve with too few common steps."""
    num = 0 if steps is None else len(steps)
    means = (math.nan, math.nan)
    if steps is not None and num:
        means = float(steps.reference.mean()), float(steps.candidate.mean())
    formula = Text(
        f"not judged: {num} common steps, at least {MIN_STEPS.value:.0f} are needed "
        f"({MIN_STEPS.source})",
        f"未判定：两侧共有 {num} 步，至少需要 {MIN_STEPS.value:.0f} 步"
        "（移动块自助法至少要能分出十个块，每块 n^(1/3) = 3 步）",
    )
    return Criterion(
        *(name, subject, *means, math.nan, math.nan, math.nan, math.nan),
        limit=limit,
        outcome=Outcome.TOO_SHORT,
        formula=formula,
        num_steps=num,
    )
