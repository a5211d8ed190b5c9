"""Which prompts each step saw, by the hashes of their texts in rollout dumps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from dumps.store.rollout_index import Int64
from dumps.store.rollout_pair import RolloutPair, SideRows, group_size


@dataclass(frozen=True, slots=True)
class StepPrompts:
    """Prompts of one step, a prompt counted once for each group of responses to it."""

    step: int
    num_reference: int
    num_candidate: int
    num_common: int
    same: bool  # as multisets; a dump that breaks off in this step counts as far as it goes


@dataclass(frozen=True, slots=True, eq=False)
class PromptOrder:
    """Prompts of all common steps.

    Args:
        steps: at least one.
        same_overall: the steps together hold the same prompts, equally often.
        num_distinct: distinct prompts of the reference, of the candidate and of both together.
        only_reference, only_candidate: in the first divergent step, one row of each prompt that
            the other side does not have there; positions in that side's `RolloutIndex`.
    """

    steps: tuple[StepPrompts, ...]
    same_overall: bool
    num_distinct: tuple[int, int, int]
    only_reference: Int64
    only_candidate: Int64

    @property
    def first_divergent(self) -> StepPrompts | None:
        """The first step whose prompts differ."""
        return next((step for step in self.steps if not step.same), None)


def compare_prompts(pair: RolloutPair) -> PromptOrder | None:
    """Compare the prompts step by step; None without a common step that has prompts."""
    sides = (_with_prompts(pair.reference), _with_prompts(pair.candidate))
    sizes = [group_size(side) for side in sides]
    cut_off = [_cut_off_step(side) for side in sides]
    steps: list[StepPrompts] = []
    totals: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    only: list[Int64] = [np.zeros(0, np.int64)] * 2
    for step, *rows in RolloutPair(*sides).by_step():
        groups = [_groups(side, size) for side, size in zip(rows, sizes, strict=True)]
        partial = [step == last for last in cut_off]
        compared = _compare_step(step, groups[0], groups[1], partial)
        if not compared.same and all(s.same for s in steps):
            only = [_first_rows(rows[i], groups[i] - groups[1 - i]) for i in range(2)]
        steps.append(compared)
        for total, group in zip(totals, groups, strict=True):
            total.update(group)
    if not steps:
        return None
    common = totals[0].keys() & totals[1].keys()
    return PromptOrder(
        steps=tuple(steps),
        same_overall=totals[0] == totals[1],
        num_distinct=(len(totals[0]), len(totals[1]), len(common)),
        only_reference=only[0],
        only_candidate=only[1],
    )


def _with_prompts(rows: SideRows) -> SideRows:
    return rows.take(rows.prompt >= 0)


def _groups(rows: SideRows, size: int | None) -> Counter[int]:
    """Count the groups of responses of each prompt; once each where the group size is unclear."""
    prompts, counts = np.unique(rows.prompt, return_counts=True)
    groups = np.ones(len(counts)) if size is None else np.maximum(1, np.rint(counts / size))
    return Counter(dict(zip(prompts.tolist(), groups.astype(int).tolist(), strict=True)))


def _cut_off_step(side: SideRows) -> int | None:
    """Return a dump's last step if it has fewer rows than steps have, as of a run that died."""
    steps, counts = np.unique(side.step[side.step >= 0], return_counts=True)
    return int(steps[-1]) if len(steps) and counts[-1] < np.median(counts) else None


def _compare_step(
    step: int, reference: Counter[int], candidate: Counter[int], partial: list[bool]
) -> StepPrompts:
    common = reference & candidate
    same = reference == candidate
    same |= partial[0] and common == reference
    same |= partial[1] and common == candidate
    return StepPrompts(step, reference.total(), candidate.total(), common.total(), same)


def _first_rows(rows: SideRows, prompts: Counter[int]) -> Int64:
    wanted = np.isin(rows.prompt, list(prompts))
    first = np.unique(rows.prompt[wanted], return_index=True)[1]
    return rows.row[wanted][np.sort(first)]
