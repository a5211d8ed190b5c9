"""Which row of a data set a rendered prompt was made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from align.data.torch_generator import Int64

_TRIED = 8  # prompts searched for their row the slow way, to learn the template
_MAX_SLOW = 64
_MOST_COMPARED = 5_000_000  # substring searches, about a second
NO_ROW = -1


@dataclass(frozen=True, slots=True, eq=False)
class RowTexts:
    """Distinct questions of a data set; rows that ask the same are one.

    Args:
        of_row: int64 [n], the number of each row's question.
        numbers: question without white space around it -> its number.
    """

    of_row: Int64
    numbers: dict[str, int]


def row_texts(prompts: Sequence[str]) -> RowTexts:
    """Number the questions of a data set."""
    numbers: dict[str, int] = {}
    of_row = [numbers.setdefault(text.strip(), len(numbers)) for text in prompts]
    return RowTexts(np.array(of_row, np.int64), numbers)


def match_prompts(rendered: Sequence[str], texts: RowTexts) -> Int64:
    """Find the question in each rendered prompt.

    The template around the question is learned from the first prompts; where it does not fit, the
    longest question that the prompt contains counts.

    Returns:
        int64 [n], numbers of questions, `NO_ROW` where none is contained.
    """
    slow = [_longest(text, texts) for text in rendered[:_TRIED]]
    frames = Counter(
        _frame(text, question) for text, question in zip(rendered, slow, strict=False) if question
    )
    prefix, suffix = frames.most_common(1)[0][0] if frames else ("", "")
    found, num_slow = [], 0
    max_slow = min(_MAX_SLOW, _MOST_COMPARED // max(1, len(texts.numbers)))
    for text in rendered:
        question = text.removeprefix(prefix).removesuffix(suffix).strip()
        number = texts.numbers.get(question, NO_ROW)
        if number == NO_ROW and num_slow < max_slow:
            num_slow += 1
            number = texts.numbers.get(_longest(text, texts), NO_ROW)
        found.append(number)
    return np.array(found, np.int64)


def _longest(text: str, texts: RowTexts) -> str:
    return max((question for question in texts.numbers if question in text), key=len, default="")


def _frame(text: str, question: str) -> tuple[str, str]:
    start = text.rfind(question)
    return text[:start], text[start + len(question) :]
