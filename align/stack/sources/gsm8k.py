"""GSM8K as published: a question, and an answer that ends in ``#### 42``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from align.core.errors import AlignError, DumpError
from align.stack.row import Row
from align.stack.sources.records import Record, column, read_records

if TYPE_CHECKING:
    from align.stack.config import StackConfig

DATA_SOURCE = "openai/gsm8k"
_MARK = "#### "
_INSTRUCTION = "Work it out, then end with #### and the final number."


def read(file: str, config: StackConfig) -> list[Row]:
    """Read JSON lines or parquet with the columns question and answer.

    Raises:
        DumpError: A column is missing, or an answer has no ``####``.
    """
    return [_row(record, where) for where, record in read_records(Path(file))]


def matches(path: Path) -> bool:
    """Tell whether the first row has a question and an answer, and no verl prompt."""
    try:
        records = read_records(path)
    except AlignError:
        return False  # the reader that is tried instead says what is wrong
    return bool(records) and {"question", "answer"} <= set(records[0][1])


def final_answer(answer: str) -> str | None:
    """Return the number after the last ``####``, without thousands separators."""
    _, mark, number = answer.rpartition(_MARK)
    return number.strip().replace(",", "") if mark else None


def _row(record: Record, where: str) -> Row:
    question, answer = (str(column(record, name, where)) for name in ("question", "answer"))
    truth = final_answer(answer)
    if truth is None:
        raise DumpError(
            where=where, key="answer", problem=f"has no {_MARK!r}", fix="give GSM8K as published"
        )
    return Row(
        index=0,
        data_source=DATA_SOURCE,
        task="gsm8k",
        messages=({"role": "user", "content": f"{question} {_INSTRUCTION}"},),
        ground_truth=truth,
        solution=answer,
    )
