"""Responses that no working engine gives, in one run alone; needs no common prompt or step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.core.finding import Side
from align.core.threshold import Threshold
from align.rollout.shift import STATISTICS, Statistic, has
from dumps.store.rollout_pair import RolloutPair, SideRows

SICK_SHARE = Threshold(
    0.05,
    source="engines that broke gave it in every response of the step (ms-swift 3372, verl 747); "
    "in 482 responses of healthy real dumps no step has more than 1 of 32",
    num_samples=482,
)
_MIN_ROWS = 3


@dataclass(frozen=True, slots=True)
class Sick:
    """The first step at which a run gives such responses."""

    statistic: Statistic
    side: Side
    step: int
    num_rows: int
    num_sick: int
    position: int  # of the first such row in the side's rows


def sick_alone(pair: RolloutPair) -> tuple[Sick, ...]:
    """Find statistics that one run alone shows at any step."""
    found = []
    for statistic in STATISTICS:
        if not statistic.degenerate:
            continue
        both = [
            _first(statistic, side, rows)
            for side, rows in ((Side.REFERENCE, pair.reference), (Side.CANDIDATE, pair.candidate))
        ]
        alone = [sick for sick in both if sick is not None]
        if len(alone) == 1:
            found.append(alone[0])
    return tuple(found)


def _first(statistic: Statistic, side: Side, rows: SideRows) -> Sick | None:
    sick = has(rows.flags, statistic)
    steps, first, sizes = np.unique(rows.step, return_index=True, return_counts=True)
    counts = np.add.reduceat(sick, first, dtype=np.int64) if len(first) else first
    beyond = np.flatnonzero(counts >= np.maximum(_MIN_ROWS, SICK_SHARE.value * sizes))
    if not len(beyond):
        return None
    i = int(beyond[0])
    row = int(first[i]) + int(np.argmax(sick[first[i] : first[i] + sizes[i]]))
    return Sick(statistic, side, int(steps[i]), int(sizes[i]), int(counts[i]), row)
