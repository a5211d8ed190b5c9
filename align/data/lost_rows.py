"""Prompts that one run sees again and again and the other never does: rows it does not have.

A sampler goes through all of its rows before it repeats one, or draws them alike. After M draws
from N rows the chance that k given rows are still unseen is at most exp(-k M / N); any k of the N
may be the unseen ones, so the chance that some k are is at most C(N, k) times that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from align.core.finding import Side
from dumps.store.rollout_index import Int64
from dumps.store.rollout_pair import RolloutPair, SideRows, group_size

_LOG_CHANCE = -6 * math.log(10)  # one in a million, as for the search of orders
_FEWEST_COMMON = 0.5  # of the prompts of either side; with fewer the data sets are other ones


@dataclass(frozen=True, slots=True, eq=False)
class LostRows:
    """Prompts that one side lacks.

    Args:
        side: the side that lacks them.
        rows: positions in the *other* side's `RolloutIndex`, one for each prompt lacking.
        seen: positions in the other side's index, one for each prompt that both saw.
        num_prompts: distinct prompts of both sides together.
        num_draws: prompts the side drew over all its steps; steps that repeat another step's
            prompts do not count, as a replayed epoch leaves out the same rows each time.
    """

    side: Side
    rows: Int64
    seen: Int64
    num_prompts: int
    num_draws: int


def find_lost_rows(pair: RolloutPair) -> tuple[LostRows, ...]:
    """Return what the candidate lacks and what the reference lacks, where chance cannot be why."""
    sides = [rows.take((rows.prompt >= 0) & (rows.step >= 0)) for rows in _sides(pair)]
    prompts = [np.unique(rows.prompt) for rows in sides]
    common = np.intersect1d(prompts[0], prompts[1])
    if len(common) < _FEWEST_COMMON * max(map(len, prompts)):
        return ()
    num_prompts = len(np.union1d(prompts[0], prompts[1]))
    found = []
    for side, own, other in ((Side.CANDIDATE, 1, 0), (Side.REFERENCE, 0, 1)):
        lacking = np.setdiff1d(prompts[other], prompts[own])
        num_draws = _num_draws(sides[own])
        if len(lacking) and log_chance(num_prompts, len(lacking), num_draws) <= _LOG_CHANCE:
            rows, seen = (_first_rows(sides[other], each) for each in (lacking, common))
            found.append(LostRows(side, rows, seen, num_prompts, num_draws))
    return tuple(found)


def log_chance(num_rows: int, num_unseen: int, num_draws: int) -> float:
    """Return the logarithm of a bound on the chance that so many rows stay unseen."""
    choices = (
        math.lgamma(num_rows + 1)
        - math.lgamma(num_unseen + 1)
        - math.lgamma(num_rows - num_unseen + 1)
    )
    return choices - num_unseen * num_draws / num_rows


def _sides(pair: RolloutPair) -> tuple[SideRows, SideRows]:
    return pair.reference, pair.candidate


def _num_draws(rows: SideRows) -> int:
    """Count the groups of responses, each step's set of prompts once."""
    size = group_size(rows) or 1
    first = np.unique(rows.step, return_index=True)[1]
    sets = {frozenset(part.tolist()): len(part) for part in np.split(rows.prompt, first[1:])}
    return sum(max(len(prompts), num_rows // size) for prompts, num_rows in sets.items())


def _first_rows(rows: SideRows, prompts: Int64) -> Int64:
    found, first = np.unique(rows.prompt, return_index=True)
    return rows.row[first[np.searchsorted(found, prompts)]]
