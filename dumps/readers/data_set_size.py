"""How many rows a run counted: verl's log lines ``dataset len: N`` and ``filter dataset len: N``.

Validation data is counted after training data, in the same words: the first of each counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from align.core.errors import DumpError
from dumps.readers.reader import Progress, no_progress
from dumps.readers.text import iter_blocks

_COUNT = re.compile(rb"(?P<what>filter dataset len|dataset len): ?(?P<count>\d+)")


@dataclass(frozen=True, slots=True)
class DataSetSize:
    """Rows of the training data before and after the length filter; None where not printed."""

    num_rows: int | None
    num_kept: int | None
    source: str


def read_data_set_size(path: Path, progress: Progress = no_progress) -> DataSetSize | None:
    """Find the counts of the training data in a console log; None where it has none.

    Raises:
        DumpError: The file is not text.
    """
    before: int | None = None
    for block in iter_blocks(path, progress):
        for match in _COUNT.finditer(block.data):
            count = int(match["count"])
            if match["what"].startswith(b"filter"):
                return DataSetSize(before, count, str(path))
            if before is not None:  # validation data: the training data was not filtered
                return DataSetSize(before, None, str(path))
            before = count
    return None if before is None else DataSetSize(before, None, str(path))


def first_data_set_size(paths: list[Path]) -> DataSetSize | None:
    """Return the counts of the first log that has any."""
    for path in paths:
        try:
            size = read_data_set_size(path)
        except (DumpError, OSError):
            continue
        if size is not None:
            return size
    return None
