"""Additions of the built-in set: the sum, and nothing near it."""

from __future__ import annotations

from align.stack.rewards.number import last_number
from align.stack.rewards.rule import Rule
from align.stack.row import Row


def _score(row: Row, response_text: str) -> float:
    return float(last_number(response_text) == row.ground_truth)


RULE = Rule("add", applies=lambda row: row.task == "add", score=_score)
