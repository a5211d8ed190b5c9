"""Rollout records written as files: JSON lines, the standard store, verl's saved rollouts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from align.core.rollout_record import COLUMNS, RolloutRecord
from dumps.readers.rollout_records import MINDSPEED_RL, VERL, Fields
from dumps.readers.rollout_store import schema
from dumps.store.atomic import write_atomic
from dumps.store.verl_skip_writer import write_gen_batch, write_tq_batch

_GROUP_ROWS = 4096
_UNKNOWN_STEP_ROWS = 65536  # rows a file where no step says where one ends
Records = Sequence[RolloutRecord]


@dataclass
class Written:
    """Files written, and how many values each loss touched."""

    files: list[Path] = field(default_factory=list)
    num_rows: int = 0
    losses: dict[str, int] = field(default_factory=dict)

    def lose(self, what: str, count: int) -> None:
        """Count values that the written format cannot hold."""
        if count:
            self.losses[what] = self.losses.get(what, 0) + count


WriteStep = Callable[[Path, int | None, Records, Written], None]


def write_records(records: Iterable[RolloutRecord], out: Path, write: WriteStep) -> Written:
    """Write records step by step; memory holds one step at a time.

    A step that comes again later, as in a dump of several processes, goes into a file of its own.
    """
    written = Written()
    for step, rows in _steps(records):
        write(out, step, rows, written)
        written.num_rows += len(rows)
    return written


def _steps(records: Iterable[RolloutRecord]) -> Iterator[tuple[int | None, Records]]:
    for step, rows in groupby(records, key=lambda record: record.step):
        block: list[RolloutRecord] = []
        for row in rows:
            block.append(row)
            if step is None and len(block) == _UNKNOWN_STEP_ROWS:
                yield step, block
                block = []
        if block:
            yield step, block


def write_store(out: Path, step: int | None, rows: Records, written: Written) -> None:
    """Write one step's Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = "step=unknown" if step is None else f"step={step:06d}"
    path = _unused(out / "rollout", name, ".parquet", written)
    columns: dict[str, list[Any]] = {c: [getattr(row, c) for row in rows] for c in COLUMNS}
    columns["extras"] = [
        json.dumps(row.extras, ensure_ascii=False) if row.extras else None for row in rows
    ]
    for name in ("prompt", "response", "finish_reason", "ground_truth", "uid", "extras"):
        columns[name] = [_whole_text(value, written) for value in columns[name]]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    pq.write_table(
        pa.table(columns, schema=schema()), part, compression="zstd", row_group_size=_GROUP_ROWS
    )
    os.replace(part, path)
    written.files.append(path)


def _whole_text(value: str | None, written: Written) -> str | None:
    """Replace halves of UTF-16 characters, which no UTF-8 file holds."""
    if value is None or value.isascii():
        return value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        written.lose("lone surrogates, written as U+FFFD", 1)
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def write_verl(out: Path, step: int | None, rows: Records, written: Written) -> None:
    """Write ``rollout/STEP.jsonl`` as verl's ``trainer.rollout_data_dir`` does."""
    name = "unknown_step" if step is None else str(step)
    _write_lines(_unused(out / "rollout", name, ".jsonl", written), rows, VERL, written)


def write_mindspeed_rl(out: Path, step: int | None, rows: Records, written: Written) -> None:
    """Write a file a step of prompt, response, label and reward."""
    name = "unknown_step" if step is None else f"step_{step}"
    _write_lines(_unused(out / "rollout", name, ".jsonl", written), rows, MINDSPEED_RL, written)


def _write_lines(path: Path, rows: Records, fields: Fields, written: Written) -> None:
    lines = []
    for record in rows:
        row = fields.row(record)
        clashing = [k for k, v in record.extras.items() if k in row and row[k] is not v]
        for name in clashing:
            written.lose(f"extra field {name!r}, whose name is taken", 1)
        # ASCII, so that half a character of a cut response stays what it is.
        lines.append(json.dumps(row) + "\n")
    write_atomic(path, "".join(lines))
    written.files.append(path)


def _unused(folder: Path, name: str, suffix: str, written: Written) -> Path:
    path, number = folder / f"{name}{suffix}", 1
    while path in written.files:
        number += 1
        path = folder / f"{name}.part{number}{suffix}"
    return path


def _saved(write: Callable[[Path, int, Records], Mapping[str, int]], name: str) -> WriteStep:
    def write_step(out: Path, step: int | None, rows: Records, written: Written) -> None:
        folder = out / str(step or 0) / name
        for what, count in write(folder, step or 0, rows).items():
            written.lose(what, count)
        written.files.append(folder)

    return write_step


FORMATS: Mapping[str, WriteStep] = {
    "store": write_store,
    "verl": write_verl,
    "mindspeed_rl": write_mindspeed_rl,
    "tq_batch": _saved(write_tq_batch, "0/tq_batch.pt"),
    "gen_batch": _saved(write_gen_batch, "gen_batch.dp"),
}
