"""A single tensor of a ``.pt`` or ``.npy`` file as mapped memory, without torch and without running
what a pickle names."""

from __future__ import annotations

import io
import mmap
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.errors import DumpError
from dumps.readers.weights_torch import LazyTensor, LazyUnpickler

Raw = npt.NDArray[Any]

_DTYPES = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "|i1",
    "uint8": "|u1",
    "bool": "|b1",
}
_LOCAL_HEADER = 30
_NAME_LENGTH = 26
_MAX_PICKLE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class MappedTensor:
    """A tensor in a file.

    Args:
        dtype: torch's name of it.
        values: read only; the raw 16 bits where the dtype is bfloat16, which NumPy lacks.
    """

    dtype: str
    values: Raw


def mapped_tensor(path: Path) -> MappedTensor:
    """Map one file.

    Raises:
        DumpError: It is missing, holds anything but one tensor, or is damaged.
    """
    try:
        if path.suffix == ".npy":
            array: Raw = np.load(path, mmap_mode="r", allow_pickle=False)
            return MappedTensor(str(array.dtype), array)
        return _of_archive(path)
    except (
        *(pickle.UnpicklingError, zipfile.BadZipFile, StopIteration, OSError, EOFError),
        *(AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError),
    ) as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be read as a tensor ({type(error).__name__}: {str(error)[:100]})",
            fix="copy it again, or dump the step again",
        ) from error


def _of_archive(path: Path) -> MappedTensor:
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with zipfile.ZipFile(_Seekable(data)) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if members["data.pkl"].file_size > _MAX_PICKLE:
            raise ValueError("a pickle too large for one tensor")
        lazy = LazyUnpickler(io.BytesIO(archive.read(members["data.pkl"]))).load()
    if not isinstance(lazy, LazyTensor):
        raise ValueError("it is no single tensor")
    info = members[f"data/{lazy.key}"]
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed, which torch never writes")
    lengths = data[info.header_offset + _NAME_LENGTH : info.header_offset + _LOCAL_HEADER]
    name, extra = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
    start = info.header_offset + _LOCAL_HEADER + name + extra
    return MappedTensor(lazy.dtype, _view(data, start, info.file_size, lazy))


def _view(data: mmap.mmap, start: int, size: int, lazy: LazyTensor) -> Raw:
    dtype = np.dtype(_DTYPES[lazy.dtype])
    if 0 in lazy.shape:
        return np.empty(lazy.shape, dtype)
    last = lazy.offset + sum((n - 1) * s for n, s in zip(lazy.shape, lazy.stride, strict=True))
    if min((lazy.offset, *lazy.stride, *lazy.shape)) < 0 or (last + 1) * dtype.itemsize > size:
        raise ValueError("it reaches beyond its storage")
    flat = np.frombuffer(data, dtype, last + 1 - lazy.offset, start + lazy.offset * dtype.itemsize)
    strides = tuple(step * dtype.itemsize for step in lazy.stride)
    return np.lib.stride_tricks.as_strided(flat, lazy.shape, strides, writeable=False)


class _Seekable(io.RawIOBase):
    """Mapped memory as a file that leaves the map open when it is closed."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = (0, self._at, len(self._data))[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = len(self._data) if size < 0 else self._at + size
        found = self._data[self._at : stop]
        self._at += len(found)
        return found
