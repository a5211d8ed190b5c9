"""Comparisons of the built-in set: the larger number, and a fifth for naming the smaller."""

from __future__ import annotations

import re

from align.stack.rewards.number import last_number
from align.stack.rewards.rule import Rule
from align.stack.row import Row

_SMALLER = 0.2


def _score(row: Row, response_text: str) -> float:
    answer = last_number(response_text)
    if answer == row.ground_truth:
        return 1.0
    return _SMALLER if answer in re.findall(r"\d+", row.messages[-1]["content"]) else 0.0


RULE = Rule("compare", applies=lambda row: row.task == "compare", score=_score)
