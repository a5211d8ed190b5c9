"""The tokenizer of a folder or run, as the `tokenizers` library runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from align.core.errors import DumpError, MissingPackageError
from align.core.optional import require
from align.core.run import ArtifactKind
from dumps.store.run_data import RunData


def load_tokenizer(folder: Path) -> Any:
    """Return a `tokenizers.Tokenizer` of a folder with tokenizer.json, or vocabulary and merges.

    Raises:
        DumpError: The folder has neither, or they cannot be loaded.
        MissingPackageError: tokenizers or transformers is not installed.
    """
    path = folder / "tokenizer.json" if folder.is_dir() else folder
    if path.is_file():
        return _from_file(path)
    transformers = require("transformers", extra="torch")
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        return loaded.backend_tokenizer
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise _broken(folder, error) from error


def _from_file(path: Path) -> Any:
    tokenizers = require("tokenizers", extra="torch")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception on a file it cannot parse
        if type(error) is not Exception:
            raise
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> DumpError:
    return DumpError(
        where=str(path),
        problem=f"is no tokenizer that can be loaded ({str(error)[:120]})",
        fix="give a folder with tokenizer.json",
    )


def tokenizer_of(data: RunData) -> Any | None:
    """Return a run's own tokenizer; None where it has no tokenizer.json, or nothing to load it."""
    tokenizers = data.run.of_kind(ArtifactKind.TOKENIZER)
    path = next((a.path for a in tokenizers if a.path.name == "tokenizer.json"), None)
    if path is None:
        return None
    try:
        return load_tokenizer(path)
    except (DumpError, MissingPackageError):
        return None


def decoder(tokenizer: Any, *, special: bool) -> Callable[[Sequence[int]], str]:
    """Return ids -> text, with special tokens or without; ids that no tokenizer has are left out.

    Args:
        special: keep special tokens in the text.
    """

    def decode(ids: Sequence[int]) -> str:
        known = [number for number in ids if 0 <= number < 2**32]
        return str(tokenizer.decode(known, skip_special_tokens=not special))

    return decode


def num_ids(tokenizer: Any) -> int:
    """Return the number of ids: one more than the highest, added tokens included."""
    return int(max(tokenizer.get_vocab(True).values(), default=-1)) + 1


def special_ids(tokenizer: Any | None) -> frozenset[int] | None:
    """Return the ids of the special tokens; None where the tokenizer is not known."""
    if tokenizer is None:
        return None
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(number for number, token in added.items() if token.special)
