"""GSM8K: the number after ``####``, as verl's strict method reads it."""

from __future__ import annotations

import re

from align.stack.rewards.rule import Rule
from align.stack.row import Row

_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_LONGEST_TAIL = 300  # characters


def _score(row: Row, response_text: str) -> float:
    found = _ANSWER.findall(response_text[-_LONGEST_TAIL:])
    return float(bool(found) and found[-1].replace(",", "") == row.ground_truth)


RULE = Rule(
    "gsm8k",
    applies=lambda row: row.task == "gsm8k" or row.data_source == "openai/gsm8k",
    score=_score,
)
