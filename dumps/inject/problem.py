"""What speaks against a replay, and the error that ends one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from align.core.errors import AlignError

MOST_SHOWN = 20


class ReplayRefused(AlignError):
    """The replay does not fit the run: raised into training, which must not go on."""

    def __init__(self, text: str) -> None:  # one argument, as Ray pickles exceptions by those
        super().__init__(where="align replay", problem=text, fix="")
        self.args = (text,)

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason.

    Args:
        text: what does not fit, as a clause.
        step: concerned; None for the whole run.
        is_missing: whether it is only that rows are not recorded, which `--allow-missing` permits.
    """

    text: str
    step: int | None = None
    is_missing: bool = False

    def __str__(self) -> str:
        return self.text if self.step is None else f"step {self.step}: {self.text}"


def refusal(problems: Sequence[Problem]) -> ReplayRefused:
    """Return the error that lists problems."""
    lines = [f"  {problem}" for problem in problems[:MOST_SHOWN]]
    if len(problems) > MOST_SHOWN:
        lines.append(f"  and {len(problems) - MOST_SHOWN} more")
    return ReplayRefused("\n".join(["the recorded rollouts do not fit this run:", *lines]))
