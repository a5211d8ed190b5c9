"""How surprising a ratio is, and where to draw the line when there are many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

RATE = 1e-3
"""Share of false ones among all that are called significant; small, as the first is blamed."""


def deviate(ratio: float, num_samples: int) -> float:
    """Return the normal deviate as rare as Student's t of these degrees of freedom, without sign.

    Args:
        ratio: an estimate over its standard error.
        num_samples: behind the standard error.

    Source: Wallace, "Bounds on normal approximations to Student's and the chi-square
    distributions", Annals of Mathematical Statistics 1959; within 0.03 up to t = 6, df >= 6.
    """
    freedom = max(1, num_samples)
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return scale * math.sqrt(freedom * math.log1p(ratio * ratio / freedom))


def critical_deviate(deviates: Sequence[float], rate: float = RATE) -> float:
    """Return the deviate from which on differences are significant.

    Args:
        deviates: of all addresses, without sign.
        rate: false discoveries among discoveries.

    Source: Benjamini and Hochberg, "Controlling the false discovery rate", JRSS B 1995.
    """
    if not deviates:
        return math.inf
    normal, total = NormalDist(), len(deviates)
    limit = normal.inv_cdf(1 - rate / total / 2)
    for i, value in enumerate(sorted(deviates, reverse=True), 1):
        at_rank = normal.inv_cdf(1 - rate * i / total / 2)
        if value >= at_rank:
            limit = at_rank
    return limit
