"""Read a file that is said to be a data set, whatever its format."""

from __future__ import annotations

from pathlib import Path

from align.core.data_set import DataSet
from align.core.errors import DumpError
from dumps.readers import indexed_data, parquet_data, raw_data
from dumps.readers.data_fields import FieldMap
from dumps.readers.reader import HEAD_BYTES, Progress, no_progress
from dumps.readers.text import identify, remedy_for


def read_data_set(
    path: Path, progress: Progress = no_progress, fields: FieldMap | None = None
) -> DataSet:
    """Read parquet, MindSpeed-RL's .bin/.idx (either name), JSON, JSON Lines or CSV.

    Args:
        fields: names of the question and the label, guessed by default.

    Raises:
        DumpError: The file is none of these, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be opened ({error.strerror})",
            fix="give a data set file",
        ) from error
    if head.startswith(b"PAR1"):
        return parquet_data.read(path, progress, fields)
    if head.startswith(indexed_data.MAGIC) or path.suffix in (".bin", ".idx"):
        return indexed_data.read(path, progress)
    what = identify(head)
    if what is not None:
        raise DumpError(
            where=str(path),
            problem=f"is no data set: {what}",
            fix=remedy_for(what) or "give parquet, .idx with .bin, JSON, JSON Lines or CSV",
        )
    return raw_data.read(path, progress, fields)
