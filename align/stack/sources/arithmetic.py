"""The built-in set: additions and comparisons of one-digit numbers, two tasks with two rules."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, product
from typing import TYPE_CHECKING

from align.stack.row import Row

if TYPE_CHECKING:
    from align.stack.config import StackConfig

NAME = "arithmetic"
ADD, COMPARE = "add", "compare"

# Prompts of several lengths, so that padding, packing and order have something to get wrong.
_ADD = ("What is {a} + {b}?", "Add {a} and {b}.", "{a} plus {b}?")
_COMPARE = (
    "Which number is larger, {a} or {b}?",
    "Which is larger: {a} or {b}?",
    "Larger of {a} and {b}?",
)


def read(file: str, config: StackConfig) -> list[Row]:
    """Make ``stack.data.num_rows`` rows, the two tasks in turn, in an order set by the seed.

    570 prompts differ: 300 additions and 270 comparisons. A larger set repeats them.
    """
    settings = config.stack.data
    draw = random.Random(settings.seed).random  # of all its methods this one never changes
    tasks = [_shuffled(list(task), draw) for task in (_additions(), _comparisons())]
    alternating = (row for pair in zip(*map(cycle, tasks), strict=True) for row in pair)
    return list(islice(alternating, settings.num_rows))


def _additions() -> Iterator[Row]:
    for form, a, b in product(_ADD, range(10), range(10)):
        yield _row(ADD, form.format(a=a, b=b), a + b)


def _comparisons() -> Iterator[Row]:
    for form, a, b in product(_COMPARE, range(10), range(10)):
        if a != b:
            yield _row(COMPARE, form.format(a=a, b=b), max(a, b))


def _row(task: str, question: str, answer: int) -> Row:
    return Row(
        index=0,
        data_source=NAME,
        task=task,
        messages=({"role": "user", "content": question},),
        ground_truth=str(answer),
        solution=f"The answer is {answer}",
    )


def _shuffled(rows: Sequence[Row], draw: Callable[[], float]) -> list[Row]:
    return [row for _, row in sorted(((draw(), row) for row in rows), key=lambda pair: pair[0])]
