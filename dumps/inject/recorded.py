"""Recorded responses of a step, by what they answer."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from align.core.errors import RunError
from align.core.metric import Skipped
from align.core.rollout_record import RolloutRecord
from dumps.inject.plan import step_file
from dumps.readers.rollout_store import read_store

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked. Two prompts are the same where their ids are, or their texts without ids.

    Args:
        ids: without padding.
        text: without special tokens.
        dataset_index: row of the data set; tells apart rows that ask the same.
    """

    ids: Ids | None
    text: str | None = None
    dataset_index: int | None = None

    @property
    def plain(self) -> str | None:
        """The text with all white space as single blanks."""
        return None if self.text is None else " ".join(self.text.split())

    def asks_what(self, other: Prompt) -> bool:
        """Tell whether another prompt asks the same."""
        if self.ids is not None and other.ids is not None:
            return self.ids == other.ids
        return self.plain is not None and self.plain == other.plain

    @property
    def shown(self) -> str:
        """How messages show it."""
        what = self.plain or (f"ids {list(self.ids[:12])}" if self.ids else "unknown")
        short = what if len(what) <= 70 else f"…{what[-69:]}"
        place = "" if self.dataset_index is None else f"data set row {self.dataset_index}: "
        return f"{place}{short!r}"


@dataclass(frozen=True, slots=True)
class Group:
    """The responses to one prompt.

    Args:
        prompt: that they answer.
        rows: their places in the step, by sample index.
    """

    prompt: Prompt
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its rows in the order they were trained on, and their groups."""

    number: int
    records: tuple[RolloutRecord, ...]
    groups: tuple[Group, ...]


def step_of(number: int, records: Sequence[RolloutRecord]) -> Step:
    """Group a step's rows by prompt.

    Rows with the same uid belong together. Without one, rows that answer the same prompt do; where
    a step asks it several times, they are cut in the order they stand in, as no dump says more.
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    seen: Counter[Hashable] = Counter()
    for place, record in enumerate(records):
        prompt = prompt_of(record)
        key: Hashable = record.uid
        if key is None:
            asked = (prompt.ids if prompt.ids is not None else prompt.plain, record.dataset_index)
            again = seen[asked, record.sample_index] if record.sample_index is not None else 0
            seen[asked, record.sample_index] += 1
            key = (*asked, again)
        places[key].append(place)
    cut = _cut(list(places.values()), records)
    groups = (Group(prompt_of(records[rows[0]]), tuple(rows)) for rows in cut)
    return Step(number, tuple(records), tuple(groups))


def _cut(groups: Sequence[list[int]], records: Sequence[RolloutRecord]) -> list[list[int]]:
    """Sort groups by sample index; cut those that hold a prompt's responses several times."""
    size = min(map(len, groups), default=1)
    cut = []
    for rows in groups:
        first = records[rows[0]]
        if first.uid is None and first.sample_index is None and len(rows) % size == 0:
            cut += [rows[i : i + size] for i in range(0, len(rows), size)]
        else:
            cut.append(sorted(rows, key=lambda row: records[row].sample_index or 0))
    return cut


def prompt_of(record: RolloutRecord) -> Prompt:
    """Return what a recorded response answers."""
    return Prompt(record.prompt_ids, record.prompt, record.dataset_index)


def recorded_steps(folder: Path) -> tuple[int, ...]:
    """Return the steps that a folder has files of."""
    names = (path.stem.removeprefix("step=") for path in folder.glob("step=*.parquet"))
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def read_step(folder: Path, number: int) -> Step:
    """Read a step.

    Raises:
        RunError: The step is not there, or a row of it cannot be read.
    """
    path = step_file(folder, number)
    if not path.is_file():
        raise RunError(
            where=str(folder), problem=f"has no step {number}", fix="record the step again"
        )
    records = []
    for record in read_store(path):
        if isinstance(record, Skipped):
            raise RunError(where=str(path), problem=record.why, fix="start the replay again")
        records.append(record)
    return step_of(number, records)


def fingerprint(ids: Sequence[int] | None) -> str:
    """Return a short hash of token ids, empty where there are none."""
    if ids is None:
        return ""
    return hashlib.sha256(json.dumps(list(map(int, ids))).encode()).hexdigest()[:16]
