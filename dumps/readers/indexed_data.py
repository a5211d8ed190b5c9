"""MindSpeed-RL's ``.bin``/``.idx`` data sets, memory-mapped, without Megatron.

``{prefix}_packed_{input_ids|attention_mask|labels|…}_document.{bin,idx}``. The index: 9 bytes of
magic, u64 version 1, u8 dtype code, u64 number of sequences, u64 number of documents; from byte 34
int32 lengths, int64 byte offsets, int64 document starts. The other file holds the tokens alone.

Source: Megatron-core `IndexedDataset`, MindSpeed-RL `indexed_dataset.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from align.core.data_set import DataSet
from align.core.errors import DumpError
from align.core.metric import Skipped
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

FORMAT = "mindspeed_rl_indexed"
MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES: dict[int, type[np.integer] | type[np.floating]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
_PROMPTS = "_input_ids_"
_NO_LABELS = Text("no labels beside the prompts", "prompt 旁边没有 labels 文件")
_MAX_SKIPPED = 100


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSequences(Sequence[npt.NDArray[np.integer]]):
    """Sequences of tokens, read when they are asked for.

    Args:
        lengths: int32 [n]; 0 for a sequence that lies outside the file.
        offsets: int64 [n], in bytes.
    """

    tokens: npt.NDArray[np.uint8]
    dtype: np.dtype[np.integer]
    lengths: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, row: int) -> npt.NDArray[np.integer]: ...
    @overload
    def __getitem__(self, row: slice) -> list[npt.NDArray[np.integer]]: ...
    def __getitem__(
        self, row: int | slice
    ) -> npt.NDArray[np.integer] | list[npt.NDArray[np.integer]]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        count, start = int(self.lengths[row]), int(self.offsets[row])
        return self.tokens[start : start + count * self.dtype.itemsize].view(self.dtype)


def read(path: Path, progress: Progress = no_progress) -> DataSet:
    """Read the index of the prompts; tokens stay on disk until they are asked for.

    Raises:
        DumpError: The index or the tokens are absent, truncated, or of a type that holds no ids.
    """
    index = path.with_suffix(".idx")
    prompts, skipped = read_sequences(index)
    progress(index.stat().st_size)
    labels = _labels(index, len(prompts))
    return DataSet(
        source=str(index),
        format=FORMAT,
        num_rows=len(prompts),
        token_ids=prompts,
        label_ids=labels,
        skipped=tuple(skipped[:_MAX_SKIPPED]),
        num_skipped=len(skipped),
        notes=() if labels is not None else (_NO_LABELS,),
    )


def read_sequences(index: Path) -> tuple[IndexedSequences, list[Skipped]]:
    """Read one ``.idx`` and map its ``.bin``; sequences outside the file become empty, counted.

    Raises:
        DumpError: As `read`.
    """
    dtype, num_sequences, data = _header(index)
    end_lengths = _HEADER.size + 4 * num_sequences
    lengths = np.frombuffer(data, np.int32, num_sequences, _HEADER.size).copy()
    offsets = np.frombuffer(data, np.int64, num_sequences, end_lengths)
    tokens = _tokens(index.with_suffix(".bin"))
    ends = offsets + lengths.astype(np.int64) * dtype.itemsize
    outside = (offsets < 0) | (lengths < 0) | (ends > len(tokens))
    outside |= offsets % dtype.itemsize != 0
    if num_sequences and outside.all():
        raise DumpError(
            where=str(index.with_suffix(".bin")),
            problem=f"holds {len(tokens)} bytes, and none of the index's {num_sequences} "
            "sequences lies in it",
            fix="copy .bin and .idx of the same preprocess run again",
        )
    lengths[outside] = 0
    skipped = [Skipped(int(row), "lies outside the .bin file") for row in np.flatnonzero(outside)]
    return IndexedSequences(tokens, dtype, lengths, offsets), skipped


def _header(index: Path) -> tuple[np.dtype[np.integer], int, bytes]:
    try:
        data = index.read_bytes()
    except FileNotFoundError as error:
        raise DumpError(
            where=str(index),
            problem="does not exist, and the .bin file cannot be read without it",
            fix="copy the .idx file of the same preprocess run beside it",
        ) from error
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        raise DumpError(
            where=str(index),
            problem="is no index of this kind, or ends within its header",
            fix="copy the .idx file again, or run preprocess_data.py again",
        )
    _, version, code, num_sequences, num_documents = _HEADER.unpack_from(data)
    needed = _HEADER.size + 12 * num_sequences + 8 * num_documents
    dtype = _DTYPES.get(code)
    if version != 1 or dtype is None:
        raise DumpError(
            where=str(index),
            problem=f"has version {version} and dtype code {code}; known are version 1 and "
            f"codes {min(_DTYPES)} to {max(_DTYPES)}",
            fix="the file is damaged or of a newer Megatron: run preprocess_data.py again",
        )
    if not issubclass(dtype, np.integer):
        raise DumpError(
            where=str(index),
            problem=f"holds {np.dtype(dtype).name} values (dtype code {code}), which are no "
            "token ids",
            fix="give the index of input_ids",
        )
    if len(data) < needed:
        raise DumpError(
            where=str(index),
            problem=f"is truncated: {len(data)} of {needed} bytes for {num_sequences} sequences",
            fix="copy the .idx file again",
        )
    return np.dtype(dtype), int(num_sequences), data


def _tokens(path: Path) -> npt.NDArray[np.uint8]:
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, np.uint8)
        return np.memmap(path, np.uint8, mode="r")
    except FileNotFoundError as error:
        raise DumpError(
            where=str(path),
            problem="does not exist: an index without its tokens",
            fix="copy the .bin file of the same preprocess run beside the .idx",
        ) from error


def _labels(index: Path, num_rows: int) -> IndexedSequences | None:
    beside = index.with_name(index.name.replace(_PROMPTS, "_labels_"))
    if beside == index or not beside.is_file():
        return None
    try:
        labels, _ = read_sequences(beside)
    except DumpError:
        return None
    return labels if len(labels) == num_rows else None


def _parts(index: Path) -> Iterator[Path]:
    prefix = index.name.partition("_packed_")[0]
    yield from index.parent.glob(f"{prefix}_packed_*_document.idx")


def _sniff(glimpse: Glimpse) -> bool:
    """One artifact a data set: the index of the prompts, or the only one there is."""
    if not glimpse.head.startswith(MAGIC):
        return False
    return _PROMPTS in glimpse.path.name or not any(
        _PROMPTS in part.name for part in _parts(glimpse.path)
    )


READER = Reader(FORMAT, ArtifactKind.DATA, _sniff, read)
