"""Parquet data sets, as verl and Hugging Face datasets read them.

verl's rows have ``prompt`` (a chat), ``reward_model.ground_truth``, ``data_source`` and
``extra_info``; any other file with a question in it will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from align.core.data_set import DataSet
from align.core.errors import DumpError
from align.core.run import ArtifactKind
from dumps.readers.data_fields import FieldMap, guess_fields
from dumps.readers.data_rows import Place, data_set
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FORMAT = "parquet_data"
_MAGIC = b"PAR1"


def _sniff(glimpse: Glimpse) -> bool:
    if not glimpse.head.startswith(_MAGIC):
        return False
    try:
        file = _open(glimpse.path)
    except DumpError:
        return True  # a parquet file it is: reading it says what is wrong
    with file:
        names = _names(file)
        return "response_ids" not in names and guess_fields(names) is not None


def read(path: Path, progress: Progress = no_progress, fields: FieldMap | None = None) -> DataSet:
    """Read questions and labels; a row group that is damaged leaves empty rows, counted.

    Raises:
        DumpError: The file is truncated or no parquet file, or no column is a question.
    """
    with _open(path) as file:
        fields = fields or guess_fields(_names(file))
        if fields is None:
            raise DumpError(
                where=str(path),
                problem=f"no column is a question (it has {', '.join(sorted(_names(file)))})",
                fix="name it with --map-key prompt=COLUMN",
            )
        result = data_set(path, FORMAT, _rows(file, fields), fields)
    progress(path.stat().st_size)
    return result


def _open(path: Path) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise DumpError(
            where=str(path),
            problem=f"is no whole parquet file ({str(error).splitlines()[0][:160]})",
            fix="copy it again: its index stands at its end, so a truncated file has none",
        ) from error


def _names(file: pq.ParquetFile) -> set[str]:
    import pyarrow as pa

    names = set()
    for column in file.schema_arrow:
        names.add(column.name)
        if pa.types.is_struct(column.type):
            names |= {f"{column.name}.{inner.name}" for inner in column.type}
    return names


def _rows(file: pq.ParquetFile, fields: FieldMap) -> Iterator[Place]:
    import pyarrow as pa

    wanted = [fields.prompt, fields.label, fields.query, fields.system]
    columns = [name for name in wanted if name]
    start = 0
    for group in range(file.num_row_groups):
        num_rows = file.metadata.row_group(group).num_rows
        try:
            rows = _to_rows(file.read_row_group(group, columns=columns, use_threads=False))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            why = f"row group {group} is damaged ({str(error).splitlines()[0][:120]})"
            yield from ((start + i, why) for i in range(num_rows))
        else:
            yield from ((start + i, row) for i, row in enumerate(rows))
        start += num_rows


def _to_rows(table: pa.Table) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


READER = Reader(FORMAT, ArtifactKind.DATA, _sniff, read)
