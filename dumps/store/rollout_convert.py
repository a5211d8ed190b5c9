"""One format of rollout dumps into another, with an account of what does not survive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from align.core.errors import DumpError
from align.core.rollout_record import COLUMNS, RolloutRecord
from dumps.store.rollout_sources import Reading, decoder, records, sources
from dumps.store.rollout_writers import FORMATS, Written, write_records


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion did.

    Args:
        num_rows: rows written.
        num_skipped: rows of the source that could not be read; ``problems`` names the first.
        absent: fields of `RolloutRecord` that no row of the source has.
        lost: what the written format has no place for, and how many values of it there were.
        left_out: fields of the source that have no place in a record.
    """

    files: tuple[Path, ...]
    num_rows: int
    num_skipped: int
    problems: tuple[str, ...]
    absent: tuple[str, ...]
    lost: dict[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def convert(source: Path, out: Path, to: str, tokenizer: Path | None = None) -> Conversion:
    """Convert a file or all rollout dumps of a folder.

    Args:
        to: a key of `FORMATS`.
        tokenizer: folder with tokenizer.json; decodes sources that hold token ids alone.

    Raises:
        DumpError: Nothing could be read, or the format needs ids that the source lacks.
        RunError: The source does not exist.
        MissingPackageError: The format needs a package that is not installed.
    """
    files, reading = sources(source), Reading()
    decode = None if tokenizer is None else decoder(tokenizer)
    seen: set[str] = set()
    watched = _watch(records(files, decode, reading), seen)
    written: Written = write_records(watched, out, FORMATS[to])
    if not written.num_rows:
        raise DumpError(
            where=str(source),
            problem=f"has no row that could be read ({'; '.join(reading.problems[:1])})",
            fix="dump the step again",
        )
    return Conversion(
        files=tuple(written.files),
        num_rows=written.num_rows,
        num_skipped=reading.num_skipped,
        problems=tuple(reading.problems),
        absent=tuple(name for name in COLUMNS if name not in seen),
        lost=dict(sorted(written.losses.items())),
        left_out=tuple(sorted(reading.left_out)),
    )


def _watch(rows: Iterator[RolloutRecord], seen: set[str]) -> Iterator[RolloutRecord]:
    """Note which fields occur at all."""
    for row in rows:
        if len(seen) < len(COLUMNS):
            seen.update(name for name in COLUMNS if getattr(row, name) is not None)
        yield row
