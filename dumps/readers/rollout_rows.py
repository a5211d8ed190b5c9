"""JSON rows of a rollout dump to columns, in batches of bounded size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.errors import DumpError
from align.core.finding import Scalar
from align.core.metric import Skipped
from align.core.rollout import RolloutBatch
from dumps.readers.json_lines import Unreadable, iter_objects, iter_raw, parse_object
from dumps.readers.reader import Progress

MAX_ROWS = 4096
MAX_BYTES = 1 << 24  # 16 MiB of JSON a batch
MAX_SKIPPED = 100  # places listed a batch; all are counted
_STEP_IN_NAME = re.compile(r"(?:.*[_-]?(?:step|iter|iteration)[_-]?)?(\d{1,7})", re.IGNORECASE)
_SCALARS = frozenset({str, int, float, bool, type(None)})
_TEXT_NUMBERS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class Spelling:
    """What one dump calls the fields of `RolloutBatch`; None where it never has one."""

    prompt: str
    response: str
    score: str | None
    step: str | None
    ground_truth: str | None
    uid: str | None
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> frozenset[str | None]:
        """Fields that are columns of their own, not extras."""
        return frozenset(
            {self.prompt, self.response, self.score, self.step, self.ground_truth, self.uid}
        )


@dataclass
class Pending:
    """Rows gathered for the next batch."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    num_skipped: int = 0
    size_bytes: int = 0

    def skip(self, line: int, why: str) -> None:
        """Count a line that holds no row."""
        self.num_skipped += 1
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(Skipped(line, why))


def read_batches(
    path: Path, format: str, spelling: Spelling, progress: Progress
) -> Iterator[RolloutBatch]:
    """Stream a dump's rows; a line that is no row is skipped and counted.

    Raises:
        DumpError: No line of the file is a row.
    """
    pending, num_rows, first = Pending(), 0, None
    for line, row, size_bytes in iter_objects(path, progress):
        if isinstance(row, Unreadable):
            pending.skip(line, row.why)
        elif not isinstance(row.get(spelling.response), str):
            pending.skip(line, f"no text under {spelling.response!r}")
        else:
            pending.rows.append(row)
            pending.lines.append(line)
            pending.size_bytes += size_bytes
        if first is None and pending.skipped:
            first = pending.skipped[0]
        if len(pending.rows) >= MAX_ROWS or pending.size_bytes >= MAX_BYTES:
            num_rows += len(pending.rows)
            yield batch_of(path, format, spelling, pending)
            pending = Pending()
    if pending.rows or (num_rows and pending.num_skipped):
        yield batch_of(path, format, spelling, pending)
    elif not num_rows:
        raise DumpError(
            where=f"{path}:{first.line}" if first else str(path),
            problem=f"no rollout row could be read ({first.why if first else 'no line'})",
            fix="dump the step again, or leave the file out",
        )


def read_rows(path: Path, lines: Sequence[int]) -> Mapping[int, dict[str, Any]]:
    """Read single lines again, for display; a line that is no JSON object is left out."""
    wanted, last, found = frozenset(lines), max(lines, default=0), {}
    for line, data in iter_raw(path):
        if line > last:
            break
        if line in wanted and isinstance(row := parse_object(data), dict):
            found[line] = row
    return found


def batch_of(path: Path, format: str, spelling: Spelling, pending: Pending) -> RolloutBatch:
    """Turn gathered rows into columns."""
    rows = pending.rows
    notes = list(spelling.notes)
    prompts = _texts(rows, spelling.prompt)
    ground_truths = _texts(rows, spelling.ground_truth)
    uids = _texts(rows, spelling.uid)
    scores, num_odd = _scores(rows, spelling.score)
    steps = _steps(rows, spelling.step)
    if num_odd:
        notes.append(f"{num_odd} values of {spelling.score!r} are no numbers; read as NaN")
    if steps is None and (named := _STEP_IN_NAME.fullmatch(path.stem)):
        steps = np.full(len(rows), int(named[1]), np.int64)
        notes.append(f"step {named[1]} is from the file name; the rows have none")
    columns = {
        "prompts": prompts,
        "scores": scores,
        "steps": steps,
        "ground_truths": ground_truths,
        "uids": uids,
    }
    return RolloutBatch(
        source=str(path),
        format=format,
        prompts=None if prompts is None else [text or "" for text in prompts],
        responses=[row[spelling.response] for row in rows],
        scores=scores,
        steps=steps,
        ground_truths=ground_truths,
        uids=uids,
        extras=_extras(rows, spelling),
        lines=np.array(pending.lines, np.int64),
        absent=tuple(name for name, column in columns.items() if column is None),
        skipped=tuple(pending.skipped),
        num_skipped=pending.num_skipped,
        notes=tuple(notes),
    )


def _column(rows: Sequence[dict[str, Any]], key: str | None) -> list[Any] | None:
    """Return one field of all rows, None where no row has it."""
    if key is None or not any(key in row for row in rows):
        return None
    return [row.get(key) for row in rows]


def _texts(rows: Sequence[dict[str, Any]], key: str | None) -> list[str | None] | None:
    """Return a column as text; what is not a string (chat lists, numbers) as its JSON."""
    column = _column(rows, key)
    if column is None:
        return None
    return [
        value if value is None or type(value) is str else json.dumps(value, ensure_ascii=False)
        for value in column
    ]


def _scores(
    rows: Sequence[dict[str, Any]], key: str | None
) -> tuple[npt.NDArray[np.float64] | None, int]:
    """Return float64 scores, NaN where there is none, and how many were no numbers."""
    column = _column(rows, key)
    if column is None:
        return None, 0
    if all(type(value) is float for value in column):
        return np.array(column, np.float64), 0
    numbers = [number_of(value) for value in column]
    num_odd = sum(n is None and v is not None for n, v in zip(numbers, column, strict=True))
    return np.array([math.nan if n is None else n for n in numbers], np.float64), num_odd


def number_of(value: object) -> float | None:
    """Return a number as float64; None for what is none, however it is written."""
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _TEXT_NUMBERS.get(value.strip().lower()) if isinstance(value, str) else None


def _steps(rows: Sequence[dict[str, Any]], key: str | None) -> npt.NDArray[np.int64] | None:
    """Return int64 steps, -1 where a row has none that is a whole number."""
    column = _column(rows, key)
    if column is None:
        return None
    return np.array([step_of(value) for value in column], np.int64)


def step_of(value: object) -> int:
    """Return a whole number from 0; -1 for anything else."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**31 else -1


def _extras(rows: Sequence[dict[str, Any]], spelling: Spelling) -> dict[str, list[Scalar]]:
    keys = dict.fromkeys(key for row in rows for key in row)
    extras = {}
    for key in keys:
        if key not in spelling.known:
            extras[key] = [_scalar(row.get(key)) for row in rows]
    return extras


def _scalar(value: Any) -> Scalar:
    if type(value) in _SCALARS:
        return value  # type: ignore[no-any-return]
    return json.dumps(value, ensure_ascii=False)
