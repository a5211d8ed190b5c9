"""Judge a response by every rule that applies to its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from align.core.errors import AlignError
from align.stack.rewards.registry import rules
from align.stack.row import Row


class RewardError(AlignError):
    """A row that no rule can judge, or a rule there is not."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The reward of one response.

    Args:
        total: sum over the rules that apply.
        by_rule: every rule in use; None where it does not apply.
    """

    total: float
    by_rule: Mapping[str, float | None]


def score(row: Row, response_text: str, names: Sequence[str] = ()) -> Scores:
    """Judge a response by the named rules, or by all.

    Raises:
        RewardError: No rule applies to the row, or there is no rule of a name.
    """
    known = rules()
    for name in names:
        if name not in known:
            raise RewardError(
                where="stack.reward.rules",
                key=name,
                problem="is no rule",
                fix=f"use {', '.join(known)}, or add align/stack/rewards/{name}.py",
            )
    by_rule = {
        name: known[name].score(row, response_text) if known[name].applies(row) else None
        for name in names or known
    }
    applied = [value for value in by_rule.values() if value is not None]
    if not applied:
        raise RewardError(
            where=f"row {row.index}",
            problem=f"has task {row.task!r} of {row.data_source!r}, and no rule applies to it",
            fix=f"the rules are {', '.join(by_rule)}; add one, or correct the task column",
        )
    return Scores(sum(applied), by_rule)


def mean_by_rule(scores: Sequence[Scores]) -> dict[str, float]:
    """Average each rule over the responses it applies to; a rule that applies to none is absent."""
    values: dict[str, list[float]] = {}
    for each in scores:
        for name, value in each.by_rule.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in sorted(values.items())}
