"""Megatron's indexed data sets: `.idx` says where each sequence lies in `.bin`.

Layout of .idx, little endian: the bytes ``MMIDIDX\\0\\0``, u64 version 1, u8 type code, u64 number
of sequences n, u64 number of document marks, then int32 lengths[n], int64 byte offsets[n], int64
document marks. The .bin is the tokens alone.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from align.core.errors import DumpError
from align.stack.sources.records import unreadable

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


def read_sequences(prefix: Path) -> list[npt.NDArray[np.generic]]:
    """Return every sequence of ``prefix.idx`` and ``prefix.bin``, in order.

    Raises:
        DumpError: A file is absent, cut short, or of another format or version.
    """
    index_file, data_file = (prefix.with_name(prefix.name + end) for end in (".idx", ".bin"))
    try:
        index, data = index_file.read_bytes(), np.memmap(data_file, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: numpy maps no empty file
        raise unreadable(index_file if not index_file.is_file() else data_file, error) from error
    dtype, lengths, offsets = _read_index(index, index_file)
    ends = offsets + lengths * dtype.itemsize
    if len(ends) and (offsets.min() < 0 or ends.max() > data.size):
        raise DumpError(
            where=str(data_file),
            problem=f"has {data.size} bytes, and {index_file.name} points to byte {ends.max()}",
            fix="copy both files again; they belong together",
        )
    return [
        np.frombuffer(data[start:end].tobytes(), dtype=dtype)
        for start, end in zip(offsets, ends, strict=True)
    ]


def _read_index(
    index: bytes, file: Path
) -> tuple[np.dtype[np.generic], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if len(index) < _HEADER.size or index[: len(_MAGIC)] != _MAGIC:
        raise _no_index(file, "does not begin like an index of Megatron")
    _, version, code, num_sequences, num_documents = _HEADER.unpack_from(index)
    if version != 1 or code not in _DTYPES:
        raise _no_index(file, f"has version {version} and type code {code}")
    if len(index) < _HEADER.size + 12 * num_sequences + 8 * num_documents:
        raise _no_index(file, f"ends before its {num_sequences} sequences are listed")
    lengths = np.frombuffer(index, "<i4", num_sequences, _HEADER.size).astype(np.int64)
    offsets = np.frombuffer(index, "<i8", num_sequences, _HEADER.size + 4 * num_sequences)
    if len(lengths) and lengths.min() < 0:
        raise _no_index(file, f"lists a sequence of {lengths.min()} tokens")
    return np.dtype(_DTYPES[code]), lengths, offsets.astype(np.int64)


def _no_index(file: Path, problem: str) -> DumpError:
    return DumpError(where=str(file), problem=problem, fix="make it again with preprocess_data")
