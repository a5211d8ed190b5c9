"""Token tensors saved with ``torch.save``: a dictionary of tensors, or one tensor of ids.

A file is a pickle, which can run any program. It is loaded with ``weights_only=True`` alone; what
that refuses (tensordict, verl's DataProto) is left to the readers of those formats.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.optional import require
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.token_tensors import CANONICAL, TokenTensors, canonical, holds_ids, step_of

if TYPE_CHECKING:
    from dumps.readers.token_tensors import Array

FORMAT = "torch_tokens"
_ZIP = b"PK\x03\x04"
_MAX_PICKLE = 1 << 24
_CLASSES_OF_OTHERS = (b"tensordict", b"DataProto")


def read(path: Path, progress: Progress) -> tuple[TokenTensors, ...]:
    """Read every tensor of a known name.

    Raises:
        DumpError: It holds other objects than tensors, or is damaged, or has no ids.
        MissingPackageError: torch is not installed.
    """
    loaded = load(path)
    progress(path.stat().st_size)
    tensors: dict[str, Array | Sequence[Array]] = {}
    problems = []
    named = loaded if isinstance(loaded, Mapping) else {_name_of(path): loaded}
    for name, value in named.items():
        array = as_arrays(value)
        if name in CANONICAL and array is None:
            problems.append(f"{path}: {name} is no tensor")
        elif array is not None:
            tensors[str(name)] = array
    kept = canonical(tensors)
    if not holds_ids(list(kept)):
        raise DumpError(
            where=str(path),
            problem=f"has no token ids (it holds {', '.join(map(str, named)) or 'nothing'})",
            fix="save input_ids, attention_mask, position_ids, responses and response_mask",
        )
    return (TokenTensors(str(path), step_of(path), kept, problems=tuple(problems)),)


def load(path: Path) -> Any:
    """Load a ``torch.save`` file without running anything of it.

    Raises:
        DumpError: It holds other objects than tensors, or is damaged.
        MissingPackageError: torch is not installed.
    """
    torch = require("torch", extra="torch")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be loaded as plain tensors ({str(error).splitlines()[0][:120]})",
            fix="save a dictionary of tensors, which needs no other class to be loaded",
        ) from error


def as_arrays(value: Any) -> Array | list[Array] | None:
    """Return a tensor, or a list of them, as NumPy arrays; None for anything else.

    bfloat16, which NumPy lacks, becomes float32, which holds each of its numbers exactly. A jagged
    tensor becomes its rows.
    """
    if isinstance(value, list | tuple):
        rows = [as_arrays(item) for item in value]
        arrays = [row for row in rows if row is not None and not isinstance(row, list)]
        return arrays if arrays and len(arrays) == len(value) else None
    if not hasattr(value, "is_nested"):
        return None
    if value.is_nested:
        return as_arrays(list(value.unbind()))
    wide = value.float() if str(value.dtype) == "torch.bfloat16" else value
    array: Array = wide.detach().cpu().numpy()
    return array


def _name_of(path: Path) -> str:
    """Return the known name a file's own name begins with; a lone tensor holds ids."""
    first = path.name.split(".")[0]
    return first if first in CANONICAL else "input_ids"


def _sniff(glimpse: Glimpse) -> bool:
    """Tell by the pickle's own words, without loading it."""
    if not glimpse.head.startswith(_ZIP):
        return False
    try:
        with zipfile.ZipFile(glimpse.path) as archive:
            entry = next(i for i in archive.infolist() if i.filename.endswith("/data.pkl"))
            words = archive.open(entry).read(_MAX_PICKLE)
    except (zipfile.BadZipFile, StopIteration, OSError, NotImplementedError, EOFError):
        return False
    if any(name in words for name in _CLASSES_OF_OTHERS):
        return False
    return any(_string(name) in words for name in ("input_ids", "responses", "completion_ids"))


def _string(text: str) -> bytes:
    """Spell a short string as pickle protocol 2 does, so that no longer word matches."""
    return b"X" + len(text).to_bytes(4, "little") + text.encode()


READER = Reader(FORMAT, ArtifactKind.TOKENS, _sniff, read)
