"""Weights saved with ``torch.save``, read without running what the pickle names.

The archive's pickle is walked with a short list of harmless constructors; every other object
becomes an `Inert`. That is stricter than ``weights_only=True``, so Megatron's own files, which hold
their command line and random state, need no unsafe loading. Numbers are mapped, not copied.
"""

from __future__ import annotations

import io
import mmap
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.optional import require
from dumps.readers.inert_pickle import Inert
from dumps.readers.weights import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

_MAX_PICKLE = 1 << 30
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
}


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor's place in an archive."""

    key: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_torch(path: Path, *, unsafe: bool = False, span: Span | None = None) -> Any:
    """Read a ``torch.save`` file as containers of `LazyTensor`.

    Args:
        unsafe: unpickle files of the old format, which can run any program.
        span: where the archive lies, if it is not the whole file.

    Raises:
        DumpError: It is damaged, or of the format before torch 1.6 and ``unsafe`` is not given.
    """
    if span is None and not zipfile.is_zipfile(path):
        return _old_format(path, unsafe)
    try:
        with _archive(path, span) as archive:
            name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
            if archive.getinfo(name).file_size > _MAX_PICKLE:
                raise ValueError("a pickle of more than 1 GiB")
            return LazyUnpickler(io.BytesIO(archive.read(name))).load()
    except (
        *(pickle.UnpicklingError, zipfile.BadZipFile, StopIteration, OSError, EOFError),
        *(AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError),
    ) as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be read as a torch file ({type(error).__name__}: {str(error)[:120]})",
            fix="copy it again; its copy or its save was cut off",
        ) from error


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of a larger file that are an archive."""

    offset: int
    length: int


def load_slice(path: Path, span: Span, rows: range) -> Tensor:
    """Read rows of one tensor that ``torch.save`` wrote into the middle of a file.

    Raises:
        DumpError: There is no tensor with these rows.
    """
    lazy = read_torch(path, span=span)
    if not isinstance(lazy, LazyTensor) or (lazy.shape and rows.stop > lazy.shape[0]):
        raise DumpError(
            where=str(path),
            problem=f"holds no tensor of {rows.stop} rows at byte {span.offset}",
            fix="copy the file again",
        )
    if lazy.shape:
        offset = lazy.offset + rows.start * lazy.stride[0]
        lazy = replace(lazy, offset=offset, shape=(len(rows), *lazy.shape[1:]))
    return _load(path, lazy, span)


def stored_tensors(path: Path, named: Any) -> dict[str, StoredTensor]:
    """Return the tensors of a mapping, dotted where it holds further mappings."""
    return {
        name: StoredTensor(lazy.shape, lazy.dtype, str(path), partial(_load, path, lazy))
        if isinstance(lazy, LazyTensor)
        else StoredTensor(tuple(lazy.shape), str(lazy.dtype)[6:], str(path), partial(_same, lazy))
        for name, lazy in _flat(named, "")
    }


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(value, LazyTensor) or hasattr(value, "untyped_storage"):
        yield prefix, value


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _load(path: Path, lazy: LazyTensor, span: Span | None = None) -> Tensor:
    torch = require("torch", extra="torch")
    start, size = _place(path, lazy.key, span)
    dtype = getattr(torch, lazy.dtype)
    width = dtype.itemsize
    last = lazy.offset + sum((n - 1) * s for n, s in zip(lazy.shape, lazy.stride, strict=True))
    if 0 in lazy.shape:
        empty: Tensor = torch.empty(lazy.shape, dtype=dtype)
        return empty
    if lazy.offset < 0 or min(lazy.stride, default=0) < 0 or (last + 1) * width > size:
        raise DumpError(
            where=str(path),
            key=lazy.key,
            problem="has a tensor that reaches beyond its storage",
            fix="copy the file again",
        )
    storage = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    raw = torch.tensor([], dtype=torch.uint8).set_(storage)
    used = raw[start + lazy.offset * width : start + (last + 1) * width]
    if used.storage_offset() % width:
        used = used.clone()
    flat = used.view(dtype)
    found: Tensor = flat.as_strided(lazy.shape, lazy.stride, flat.storage_offset())
    return found


@contextmanager
def _archive(path: Path, span: Span | None) -> Iterator[zipfile.ZipFile]:
    """Open an archive; one in the middle of a file is read as if the file ended there."""
    with path.open("rb") as file:
        if span is None:
            with zipfile.ZipFile(file) as archive:
                yield archive
            return
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with view, zipfile.ZipFile(_Slice(view, span)) as archive:
            yield archive


class _Slice(io.RawIOBase):
    """A part of mapped memory as a file, of which nothing is copied before it is read."""

    def __init__(self, view: mmap.mmap, span: Span) -> None:
        self._view, self._span, self._at = view, span, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._span.length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._span.length - self._at)
        count = left if size < 0 else min(size, left)
        start = self._span.offset + self._at
        self._at += count
        return bytes(self._view[start : start + count])


def _place(path: Path, key: str, span: Span | None) -> tuple[int, int]:
    """Return where a storage's bytes begin in the file, and how many there are."""
    with _archive(path, span) as archive:
        info = next(i for i in archive.infolist() if i.filename.endswith(f"/data/{key}"))
    if info.compress_type != zipfile.ZIP_STORED:
        raise DumpError(
            where=str(path),
            key=key,
            problem="is compressed, which torch never writes",
            fix="save it again with torch.save",
        )
    header = info.header_offset + (span.offset if span else 0)
    with path.open("rb") as stream:
        stream.seek(header + 26)
        lengths = stream.read(4)
    name, extra = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
    return header + 30 + name + extra, info.file_size


class LazyUnpickler(pickle.Unpickler):
    """Makes containers of `LazyTensor` of a torch archive's pickle, and runs nothing it names."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        return type("Inert", (Inert,), {"path": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, str):
            raise pickle.UnpicklingError("a persistent id that is no tensor storage")
        return str(key), dtype


def _tensor(storage: tuple[str, str], offset: int, size: Any, stride: Any, *_: Any) -> LazyTensor:
    key, dtype = storage
    return LazyTensor(key, dtype, int(offset), tuple(map(int, size)), tuple(map(int, stride)))


def _parameter(data: LazyTensor, *_: Any) -> LazyTensor:
    return data


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}


def _old_format(path: Path, unsafe: bool) -> Any:
    if not unsafe:
        raise DumpError(
            where=str(path),
            problem="is no archive of torch 1.6 or later; reading it would run what it names",
            fix="give --unsafe-pickle if you trust the file, or save it again with torch.save",
        )
    torch = require("torch", extra="torch")
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, ImportError) as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be unpickled ({str(error)[:120]})",
            fix="install what the file names, or save plain tensors",
        ) from error
