"""Pickles read without executing them: torch archives and verl's DataProto as plain values.

A pickle names functions to call. Here nothing it names is imported: a short list of containers and
of tensor constructors is rebuilt as Python and NumPy values, and every other object becomes an
`Inert` that holds what it was given. This is stricter than torch's ``weights_only=True`` and needs
neither torch nor tensordict nor verl.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.errors import DumpError

Array = npt.NDArray[Any]

_DTYPES = {
    "double": "<f8",
    "float64": "<f8",
    "float": "<f4",
    "float32": "<f4",
    "half": "<f2",
    "float16": "<f2",
    "bfloat16": "<u2",  # widened to float32
    "long": "<i8",
    "int64": "<i8",
    "int": "<i4",
    "int32": "<i4",
    "short": "<i2",
    "int16": "<i2",
    "char": "|i1",
    "int8": "|i1",
    "byte": "|u1",
    "uint8": "|u1",
    "bool": "|b1",
}


_MAX_INFLATION = 4


class Inert:
    """An object of a class that is not imported: its name and what it was given, never run."""

    path = ""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None
        self.items: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        """Keep what would be appended."""
        self.items.append(value)


@dataclass(frozen=True, slots=True)
class Ragged:
    """A nested tensor: rows of different lengths."""

    rows: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    data: bytes


def read_pickle(path: Path) -> Any:
    """Read a torch archive or a plain pickle as inert values.

    Raises:
        DumpError: It is neither, or it is cut off or damaged.
    """
    return unpickle(path.read_bytes(), str(path))


def unpickle(data: bytes, where: str) -> Any:
    """Read a torch archive or a plain pickle in memory; ``where`` is its place in errors.

    Raises:
        DumpError: It is neither, or it is cut off or damaged.
    """
    try:
        return _load(data)
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        AttributeError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise DumpError(
            where=where,
            problem=f"cannot be read as a pickle ({type(error).__name__}: {str(error)[:120]})",
            fix="copy it again, or dump the step again",
        ) from error


def _load(data: bytes) -> Any:
    if not data.startswith(b"PK\x03\x04"):
        return _Unpickler(io.BytesIO(data), None).load()
    archive = zipfile.ZipFile(io.BytesIO(data))
    if sum(item.file_size for item in archive.infolist()) > _MAX_INFLATION * len(data):
        raise ValueError("an archive that inflates without bound; torch does not compress")
    inside = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
    if inside is None:
        raise ValueError("no data.pkl in the archive")
    folder = inside[: -len("data.pkl")]
    return _Unpickler(io.BytesIO(archive.read(inside)), (archive, folder)).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, archive: tuple[zipfile.ZipFile, str] | None) -> None:
        super().__init__(file)
        self._archive = archive

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module.replace("numpy._core", "numpy.core"), name))
        if known is not None:
            return known
        if module == "torch" and name.endswith("Storage"):
            return _dtype_name(name[: -len("Storage")])
        if module == "torch" and name in _DTYPES:
            return name
        return type("Inert", (Inert,), {"path": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, _ = pid
        if kind != "storage" or self._archive is None or not isinstance(dtype, str):
            raise pickle.UnpicklingError("a persistent id that is no tensor storage")
        archive, folder = self._archive
        return _Storage(dtype, archive.read(f"{folder}data/{key}"))


def _dtype_name(name: str) -> str:
    return name.lower() if name.lower() in _DTYPES else "byte"


def _tensor(storage: _Storage, offset: int, size: Any, stride: Any, *_: Any) -> Array:
    flat = np.frombuffer(storage.data, _DTYPES[storage.dtype])
    size, stride = tuple(map(int, size)), tuple(map(int, stride))
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if min((offset, *size, *stride), default=0) < 0 or (0 not in size and last >= len(flat)):
        raise pickle.UnpicklingError("a tensor reaches beyond its storage")
    if 0 in size:
        return np.zeros(size, flat.dtype)
    view = np.lib.stride_tricks.as_strided(
        flat[offset:], size, tuple(step * flat.itemsize for step in stride), writeable=False
    )
    return _widened(view) if storage.dtype == "bfloat16" else view.copy()


def _widened(bits: Array) -> Array:
    """Return bfloat16 bits as the float32 of the same value."""
    return (bits.astype("<u4") << 16).view("<f4")


def _rebuilt(rebuild: Callable[..., Any], _: Any, args: Any, *__: Any) -> Any:
    return rebuild(*args)


def _ragged(parts: Any, *more: Any) -> Ragged:
    """Cut a jagged tensor into its rows; torch hands its parts on as one dict, earlier as three."""
    if not isinstance(parts, dict):
        parts = dict(zip(("values", "offsets", "lengths"), (parts, *more), strict=False))
    found = {str(name).lstrip("_"): value for name, value in parts.items()}
    bounds = found["offsets"].astype(np.int64).tolist()
    ends = bounds[1:]
    if found.get("lengths") is not None:
        sizes = found["lengths"].astype(np.int64).tolist()
        ends = [start + size for start, size in zip(bounds, sizes, strict=False)]
    rows = zip(bounds[: len(ends)], ends, strict=True)
    return Ragged(tuple(found["values"][start:end] for start, end in rows))


def _tensor_dict(_: Any, state: Any) -> dict[str, Any]:
    return {str(key): plain(value) for key, value in state["_tensordict"].items()}


def _consolidated(metadata: Any, flat: Array) -> dict[str, Any]:
    """Cut a tensordict's tensors out of the one buffer it was written as."""
    raw = flat.astype(np.uint8).tobytes()
    found: dict[str, Any] = {}
    for name, (dtype, shape, start, stop, _) in metadata["leaves"].items():
        kind = str(dtype).removeprefix("torch.")
        count = int(np.prod(shape, dtype=np.int64))
        size = count * np.dtype(_DTYPES[kind]).itemsize
        values = np.frombuffer(raw[start:stop][:size], _DTYPES[kind]).reshape(shape)
        found[str(name)] = _widened(values) if kind == "bfloat16" else values
    return found


def plain(value: Any) -> Any:
    """Unwrap NumPy arrays and tensordict's non-tensor data; anything else is left as it is."""
    if isinstance(value, _Array):
        return value.value
    if not isinstance(value, Inert) or not isinstance(value.state, dict):
        return value
    if value.path.endswith("NonTensorStack"):
        return [plain(item) for item in value.state["tensordicts"]]
    if value.path.endswith("NonTensorData"):
        return plain(value.state["non_tensordict"]["data"])
    return value


class _Dtype:
    """A NumPy dtype of numbers or texts; structured ones are refused."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not _SIMPLE.fullmatch(code):
            raise pickle.UnpicklingError(f"an array of {str(code)[:20]}")
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        self.order = "<" if state[1] == "=" else str(state[1])

    @property
    def holds_objects(self) -> bool:
        return self.code.startswith("O")

    def numpy(self) -> np.dtype[Any]:
        order = self.order if self.order in "<>|" else "<"
        return np.dtype(order + self.code)


class _Array:
    """A NumPy array, filled from its pickled state without NumPy's own unpickling."""

    def __init__(self) -> None:
        self.value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        if dtype.holds_objects:
            self.value = [plain(item) for item in data]
            return
        raw = data if isinstance(data, bytes) else data.encode("latin1")
        flat = np.frombuffer(raw, dtype.numpy())
        self.value = flat.reshape(shape, order="F" if is_fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _scalar(dtype: _Dtype, data: Any) -> Any:
    if dtype.holds_objects:
        return data
    raw = data if isinstance(data, bytes) else data.encode("latin1")
    return np.frombuffer(raw, dtype.numpy())[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode(encoding if encoding in ("latin1", "utf-8") else "latin1")


_SIMPLE = re.compile(r"[biuf][1248]|[SU]\d{1,9}|O8?")
_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuilt,
    ("torch.nested._internal.nested_tensor", "_rebuild_njt"): _ragged,
    ("tensordict._reductions", "_make_td"): _tensor_dict,
    ("tensordict._reductions", "_rebuild_tensordict_files_consolidated"): _consolidated,
}
