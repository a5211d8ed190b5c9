"""Every rollout dump below a path, in the order of its steps, as records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from align.core.errors import AlignError, DumpError
from align.core.metric import Skipped
from align.core.optional import require
from align.core.rollout_record import RolloutRecord
from align.core.run import ArtifactKind
from dumps.readers import rollout_store
from dumps.readers.rollout_records import read_records
from dumps.readers.verl_skip_rollout import GEN_BATCH, TQ_BATCH, Decode, read_saved
from dumps.store.discover import discover

_MAX_PROBLEMS = 20


@dataclass
class Reading:
    """What was read so far, and what was not.

    Args:
        problems: "file:row: why" of the first rows and files left out; ``num_skipped`` counts rows.
        left_out: fields of the sources that have no place in a record.
    """

    num_rows: int = 0
    num_skipped: int = 0
    problems: list[str] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)

    def trouble(self, text: str) -> None:
        """Keep a problem, up to a limit."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)


def sources(path: Path) -> list[Path]:
    """Return the rollout dumps of a folder, or the file itself, steps ascending.

    Raises:
        DumpError: There is none.
        RunError: The path does not exist.
    """
    if path.name in (TQ_BATCH, GEN_BATCH):
        return [path]
    saved = [file for name in (TQ_BATCH, GEN_BATCH) for file in path.rglob(name)]
    found = [a.path for a in discover([path]).of_kind(ArtifactKind.ROLLOUT)]
    if not found and not saved:
        raise DumpError(
            where=str(path),
            problem="holds no rollout dump",
            fix="give verl's or MindSpeed-RL's JSON lines, a tq_batch.pt, a gen_batch.dp, or a "
            "folder that `align rollout convert` wrote",
        )
    return sorted([*found, *saved], key=_natural)


def records(
    files: Sequence[Path], decode: Decode | None, reading: Reading
) -> Iterator[RolloutRecord]:
    """Yield the records of all files; what cannot be read is counted in ``reading``."""
    for file in files:
        try:
            for number, record in enumerate(_each(file, decode, reading), start=1):
                if isinstance(record, Skipped):
                    reading.num_skipped += 1
                    reading.trouble(f"{file}:{record.line or number}: {record.why}")
                else:
                    reading.num_rows += 1
                    yield record
        except AlignError as error:
            reading.trouble(str(error))


def _each(file: Path, decode: Decode | None, reading: Reading) -> Iterator[RolloutRecord | Skipped]:
    if file.name in (TQ_BATCH, GEN_BATCH):
        saved = read_saved(file, decode)
        reading.left_out.update(saved.left_out)
        return iter(saved.records)
    if file.suffix == ".parquet":
        return rollout_store.read_store(file)
    return read_records(file)


def decoder(tokenizer: Path) -> Callable[[Sequence[int]], str]:
    """Return ids -> text without special tokens, as verl decodes for its dump.

    Raises:
        MissingPackageError: tokenizers is not installed.
        DumpError: The folder has no readable tokenizer.json.
    """
    tokenizers = require("tokenizers", extra="torch")
    path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    try:
        loaded: Any = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception on a file it cannot parse
        if type(error) is not Exception:
            raise
        raise DumpError(
            where=str(path),
            problem=f"is no tokenizer.json that can be loaded ({str(error)[:120]})",
            fix="give the folder of the model's tokenizer",
        ) from error
    return lambda ids: str(loaded.decode(list(ids), skip_special_tokens=True))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort numbers in a path by value: 2.jsonl before 10.jsonl."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
