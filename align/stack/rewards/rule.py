"""What a reward rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from align.stack.row import Row


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to judge a response. A module of this folder that holds one calls it `RULE`.

    Args:
        name: how configurations, dumps and metrics call it.
        applies: whether it can judge responses to a row at all.
        score: the reward of a response to a row it applies to.
    """

    name: str
    applies: Callable[[Row], bool]
    score: Callable[[Row, str], float]
