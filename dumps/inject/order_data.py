"""The data set that an order's rows are numbers in, compared with the one a run trains on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from align.core.errors import AlignError
from dumps.inject.problem import Problem
from dumps.readers.data_fields import FieldMap, as_question
from dumps.readers.data_set import read_data_set
from dumps.readers.row_hashes import (
    BRIEF_DIGITS,
    Hashes,
    brief_hashes,
    data_set_hash,
    hashed_content,
    question_hashes,
    row_hashes,
)
from dumps.store.atomic import write_atomic

FILE_NAME = "data_set.json"
_WAY_OUT = "give the recorded run to --order, whose rows are found by content"


@dataclass(frozen=True, slots=True)
class OrderData:
    """What an order file says of its data set.

    Args:
        source: where it was.
        num_rows: of it; None where it was not at hand.
        sha: `data_set_hash` of it; None where it was not at hand.
        brief: `brief_hashes` of it, to find the first row that differs.
        hashed: what these are of, "text" or "ids".
    """

    source: str
    num_rows: int | None
    sha: str | None = None
    brief: str = ""
    hashed: str = "text"


@dataclass(frozen=True, slots=True)
class OwnData:
    """The data set of a run, as it is on disk.

    Args:
        hashes: of its rows.
        hashed: what these are of, "text" or "ids".
        question: gives the text of a row.
    """

    hashes: Hashes
    hashed: str
    question: Callable[[int], str]


def different(order: OrderData, read_own: Callable[[], OwnData]) -> Iterator[Problem]:
    """Yield why the rows of an order are not those of a run's data set.

    Args:
        read_own: may raise `AlignError`, as the run's data set can be of any kind.
    """
    if order.sha is None and order.num_rows is None:
        return
    try:
        own = read_own()
    except AlignError as error:
        yield Problem(
            f"--order: gives rows of {order.source} by their numbers, and this run's data set "
            f"cannot be read to compare it ({error}); {_WAY_OUT}"
        )
        return
    if order.sha is not None and order.hashed != own.hashed:
        yield Problem(
            f"--order: {order.source} holds {order.hashed} and this run's data set {own.hashed}: "
            "whether their rows are the same cannot be told; write the order file with `align data "
            f"order --data` and the data set of this run, or {_WAY_OUT}"
        )
        return
    is_same = (
        len(own.hashes) == order.num_rows
        if order.sha is None
        else data_set_hash(own.hashes) == order.sha
    )
    if not is_same:
        yield Problem(
            f"--order: made for another data set ({order.source}): {order.num_rows} rows there, "
            f"{len(own.hashes)} here{_first(order, own)}; {_WAY_OUT}"
        )


def _first(order: OrderData, own: OwnData) -> str:
    """Say which row differs first, counted from 0."""
    ours = _cut(brief_hashes(own.hashes))
    theirs = _cut(order.brief)
    if not theirs:
        return ""
    pairs = enumerate(zip(theirs, ours, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), None)
    if place is None:
        shorter = min(len(theirs), len(ours))
        return f", and the first {shorter} are the same"
    return f", and row {place} is the first that differs (here {own.question(place)[:70]!r})"


def _cut(brief: str) -> list[str]:
    return [brief[i : i + BRIEF_DIGITS] for i in range(0, len(brief), BRIEF_DIGITS)]


def of_files(files: Sequence[Path], prompt: str | None = None) -> OwnData:
    """Read data set files that are trained on one after the other.

    Args:
        prompt: name of the field with the question, guessed by default.

    Raises:
        DumpError: One cannot be read.
    """
    fields = None if prompt is None else FieldMap(prompt)
    read = [read_data_set(file, fields=fields) for file in files]
    hashes = np.concatenate([row_hashes(data) for data in read])
    texts = [text for data in read for text in (data.prompts or [""] * len(data))]
    return OwnData(hashes, hashed_content(read[0]), lambda row: texts[row])


def of_prompts(prompts: Sequence[Any]) -> OwnData:
    """Take questions or chats that a run holds in memory."""
    texts = [as_question(prompt)[0] for prompt in prompts]
    return OwnData(question_hashes(texts, len(texts)), "text", lambda row: texts[row])


def write_order_data(folder: Path, data: OrderData) -> None:
    """Write it down for the training processes."""
    write_atomic(folder / FILE_NAME, json.dumps(asdict(data)))


def read_order_data(folder: Path) -> OrderData | None:
    """Return what was written, None where nothing was."""
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    return OrderData(**json.loads(path.read_text(encoding="utf-8")))
