"""The standard rollout store: ``rollout/step=000001.parquet``, one response a row.

Its columns are the fields of `RolloutRecord`, ids and log_probs as lists, everything else of the
source in ``extras`` as a JSON object. Written by `align rollout convert`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.metric import Skipped
from align.core.rollout import RolloutBatch
from align.core.rollout_record import COLUMNS, RolloutRecord
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress
from dumps.readers.rollout_records import VERL
from dumps.readers.rollout_rows import Pending, batch_of
from dumps.readers.verl_rollout import SPELLING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FORMAT = "rollout_store"
_MAGIC = b"PAR1"
_OWN = frozenset({"response", "response_ids", "log_probs", "extras"})
_BATCH_ROWS = 4096


@cache
def schema() -> pa.Schema:
    """Return the columns of a file."""
    import pyarrow as pa

    types = {
        "prompt_ids": pa.list_(pa.int32()),
        "response_ids": pa.list_(pa.int32()),
        "log_probs": pa.list_(pa.float64()),
        "score": pa.float64(),
        "step": pa.int64(),
        "dataset_index": pa.int64(),
        "sample_index": pa.int64(),
    }
    fields = [pa.field(name, types.get(name, pa.string())) for name in COLUMNS]
    return pa.schema([*fields, pa.field("extras", pa.string())], {"format": FORMAT, "version": "1"})


def read(path: Path, progress: Progress = no_progress) -> Iterator[RolloutBatch]:
    """Stream a file of the store; rows of a damaged row group and rows without text are counted.

    Raises:
        DumpError: The file is truncated, or no row of it has a text.
    """
    pending, num_rows, first = Pending(), 0, None
    for number, record in _numbered(path):
        if isinstance(record, Skipped):
            pending.skip(number, record.why)
        elif record.response is None:
            pending.skip(number, "no text, only token ids: convert with --tokenizer")
        else:
            row = VERL.row(record)
            pending.rows.append({"output": record.response, **row})
            pending.lines.append(number)
        if first is None and pending.skipped:
            first = pending.skipped[0]
        if len(pending.rows) >= _BATCH_ROWS:
            num_rows += len(pending.rows)
            yield batch_of(path, FORMAT, SPELLING, pending)
            pending = Pending()
    progress(path.stat().st_size)
    if pending.rows or (num_rows and pending.num_skipped):
        yield batch_of(path, FORMAT, SPELLING, pending)
    elif not num_rows:
        raise DumpError(
            where=f"{path}:{first.line}" if first else str(path),
            problem=f"no rollout row could be read ({first.why if first else 'no row'})",
            fix="convert it again from its source, with --tokenizer where that has ids alone",
        )


def read_store(path: Path) -> Iterator[RolloutRecord | Skipped]:
    """Yield every row of a file, or why it could not be read.

    Raises:
        DumpError: The file is truncated or no parquet file.
    """
    return (record for _, record in _numbered(path))


def read_rows(path: Path, numbers: Sequence[int]) -> Mapping[int, dict[str, Any]]:
    """Read single rows again by their 1-based number, for display, as verl's lines."""
    wanted = frozenset(numbers)
    return {
        number: VERL.row(record)
        for number, record in _numbered(path)
        if number in wanted and isinstance(record, RolloutRecord)
    }


def _numbered(path: Path) -> Iterator[tuple[int, RolloutRecord | Skipped]]:
    import pyarrow as pa

    start = 1
    with _open(path) as file:
        for group in range(file.num_row_groups):
            num_rows = file.metadata.row_group(group).num_rows
            try:
                rows = file.read_row_group(group, use_threads=False).to_pylist()
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                why = f"row group {group} is damaged ({str(error).splitlines()[0][:120]})"
                yield from ((start + i, Skipped(start + i, why)) for i in range(num_rows))
            else:
                yield from ((start + i, _record(row)) for i, row in enumerate(rows))
            start += num_rows


def _record(row: Mapping[str, Any]) -> RolloutRecord:
    given: dict[str, Any] = {name: row.get(name) for name in COLUMNS}
    for name in ("prompt_ids", "response_ids", "log_probs"):
        given[name] = None if given[name] is None else tuple(given[name])
    extras = json.loads(row["extras"]) if row.get("extras") else {}
    return RolloutRecord(**given, extras=extras)


def _open(path: Path) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise DumpError(
            where=str(path),
            problem=f"is no whole parquet file ({str(error).splitlines()[0][:160]})",
            fix="convert it again: its index stands at its end, so a truncated file has none",
        ) from error


def is_store(path: Path) -> bool:
    """Tell a file of the store by its columns; one without an index by its name."""
    try:
        with _open(path) as file:
            return set(file.schema_arrow.names) >= _OWN
    except DumpError:
        return path.name.startswith("step=")


def _sniff(glimpse: Glimpse) -> bool:
    return glimpse.head.startswith(_MAGIC) and is_store(glimpse.path)


READER = Reader(FORMAT, ArtifactKind.ROLLOUT, _sniff, read)
