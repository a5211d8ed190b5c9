"""Token tensors saved with NumPy: ``input_ids.npy`` beside its fellows, or one ``.npz``."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from align.core.errors import DumpError
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.token_tensors import CANONICAL, TokenTensors, canonical, holds_ids, step_of

if TYPE_CHECKING:
    from dumps.readers.token_tensors import Array

FORMAT = "numpy_tokens"
_MAGIC = b"\x93NUMPY"


def read(path: Path, progress: Progress) -> tuple[TokenTensors, ...]:
    """Read an array of ids and the arrays named like it, or every array of an archive.

    ``input_ids.npy`` is read with ``attention_mask.npy`` and so on, ``input_ids_3.npy`` with
    ``attention_mask_3.npy``.

    Raises:
        DumpError: It is damaged, holds Python objects, or no ids.
    """
    progress(path.stat().st_size)
    if path.suffix == ".npz":
        return (_of_archive(path),)
    name, ending = _named(path)
    arrays: dict[str, Array] = {name or "input_ids": _load(path)}
    for other in CANONICAL if name else ():
        fellow = path.with_name(f"{other}{ending}.npy")
        if other != name and fellow.is_file():
            arrays[other] = _load(fellow)
    return (TokenTensors(str(path), step_of(path), canonical(arrays)),)


def _of_archive(path: Path) -> TokenTensors:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, Array] = {n: archive[n] for n in archive.files if n in CANONICAL}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise _broken(path, error) from error
    kept = canonical(arrays)
    if not holds_ids(list(kept)):
        raise _broken(path, ValueError("it has no array of token ids"))
    return TokenTensors(str(path), step_of(path), kept)


def _load(path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _broken(path, error) from error
    return array


def _broken(path: Path, error: Exception) -> DumpError:
    return DumpError(
        where=str(path),
        problem=f"cannot be read as token arrays ({str(error)[:120]})",
        fix="save integer arrays with numpy.save or numpy.savez, without pickled objects",
    )


def _named(path: Path) -> tuple[str | None, str]:
    """Return the tensor's name and what follows it: "input_ids_3" -> "input_ids", "_3"."""
    known = sorted(CANONICAL, key=len, reverse=True)
    name = next((name for name in known if path.stem.startswith(name)), None)
    ending = path.stem[len(name) :] if name else ""
    return (name, ending) if re.fullmatch(r"([_-]?(step[_-]?)?\d+)?", ending) else (None, "")


def _sniff(glimpse: Glimpse) -> bool:
    """Tell by the array's name: an index of rows is whole numbers as well."""
    if glimpse.head.startswith(_MAGIC):
        name, _ = _named(glimpse.path)
        kept = CANONICAL.get(name) if name else None
        return kept == "input_ids" or (kept == "responses" and not _beside_ids(glimpse.path))
    if glimpse.path.suffix != ".npz" or not zipfile.is_zipfile(glimpse.path):
        return False
    with zipfile.ZipFile(glimpse.path) as archive:
        return holds_ids([name.removesuffix(".npy") for name in archive.namelist()])


def _beside_ids(path: Path) -> bool:
    name, ending = _named(path)
    assert name is not None
    same = (n for n, kept in CANONICAL.items() if kept == "input_ids")
    return any(path.with_name(f"{other}{ending}.npy").is_file() for other in same)


READER = Reader(FORMAT, ArtifactKind.TOKENS, _sniff, read)
