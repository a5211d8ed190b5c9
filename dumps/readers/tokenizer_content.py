"""What the large files of a tokenizer folder hold: vocabulary, merges, added tokens, settings.

Parsed content, not text: merges written as pairs or as strings are the same merges, and the
``#version`` line of merges.txt is none.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from align.core.errors import DumpError

MAX_BYTES = 256 << 20  # the largest tokenizer.json known has 35 MB
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_OTHER_LAYOUT = (
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
_T = TypeVar("_T")

Merge = tuple[str, str]
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "model", "truncation")
"""Sections of tokenizer.json that decide how a text becomes ids, besides the vocabulary."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token outside the model's vocabulary; flags that a file does not state are left out."""

    id: int
    flags: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenizerJson:
    """What tokenizer.json states; None where it does not.

    Args:
        begins_with, ends_with: tokens the post-processor puts before and after every text.
        padding_side: "left" or "right".
        parts: the sections of `PARTS` as the file has them, the model without its vocabulary and
            merges.
    """

    vocabulary: Mapping[str, int] | None
    merges: tuple[Merge, ...] | None
    added: Mapping[str, AddedToken]
    begins_with: tuple[str, ...] | None
    ends_with: tuple[str, ...] | None
    padding_side: str | None
    parts: Mapping[str, Json]


def read_tokenizer_json(path: Path) -> TokenizerJson:
    """Read tokenizer.json.

    Raises:
        DumpError: It is no whole JSON object, or not laid out as one of tokenizers.
    """
    return _laid_out(path, lambda: _tokenizer_json(_load(path)))


def read_vocabulary(path: Path) -> Mapping[str, int]:
    """Read vocab.json.

    Raises:
        DumpError: It is no whole JSON object of tokens and ids.
    """
    return _laid_out(path, lambda: _ids(_load(path)))


def _ids(stated: Mapping[str, Any]) -> Mapping[str, int]:
    if not all(type(number) is int for number in stated.values()):
        raise ValueError("an id is no whole number")
    return stated


def read_merges(path: Path) -> tuple[Merge, ...]:
    """Read merges.txt, best merge first.

    Raises:
        DumpError: A line is no pair of two pieces.
    """
    lines = _text(path).replace("\r\n", "\n").split("\n")
    stated = [line for line in lines if line and not line.startswith("#version")]
    return _laid_out(path, lambda: _merges(stated))


def read_template(path: Path) -> str:
    """Read chat_template.jinja.

    Raises:
        DumpError: It is too large.
    """
    return _text(path)


def read_tiktoken(path: Path) -> Mapping[str, int]:
    """Read a file of tiktoken, lines of a token's bytes in base64 and its rank.

    Returns:
        Ranks by token, every byte as the letter that byte-level vocabularies write for it: so
        the same vocabulary in vocab.json is equal.

    Raises:
        DumpError: A line is not of that form.
    """
    rows = [line.split() for line in _text(path).splitlines() if line.strip()]
    return _laid_out(path, lambda: {_lettered(token): int(rank) for token, rank in rows})


def _lettered(token: str) -> str:
    try:
        return "".join(_LETTERS[byte] for byte in base64.b64decode(token, validate=True))
    except binascii.Error as error:
        raise ValueError(f"{token[:20]!r} is no base64") from error


def _letters() -> list[str]:
    """Return what byte-level BPE writes for each byte: itself if printable, else from 256 on.

    Source: the byte-level alphabet of GPT-2, which vocab.json of that family is written in.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(b if b in printable else 256 + others.index(b)) for b in range(256)]


_LETTERS = _letters()


def line_of(path: Path, entry: str | Merge) -> int | None:
    """Return the 1-based line of a token or merge in a file that was read before."""
    text = _text(path)
    if isinstance(entry, str):
        patterns = [_quoted(entry) + r"\s*[:,]"]
    else:
        first, second = map(_quoted, entry)
        whole = " ".join(entry)
        patterns = [rf"{first}\s*,\s*{second}", _quoted(whole), rf"(?m)^{re.escape(whole)}\r?$"]
    found = next((m for pattern in patterns if (m := re.search(pattern, text))), None)
    return text.count("\n", 0, found.start()) + 1 if found else None


def _quoted(text: str) -> str:
    spellings = {json.dumps(text, ensure_ascii=ascii) for ascii in (False, True)}
    return f"(?:{'|'.join(map(re.escape, sorted(spellings)))})"


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise _error(path, f"is larger than {MAX_BYTES >> 20} MiB")
    return path.read_bytes().decode("utf-8", "replace").removeprefix("\ufeff")


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise _error(path, f"is no whole JSON text ({error})") from error
    if not isinstance(loaded, dict):
        raise _error(path, "is no JSON object")
    return loaded


def _laid_out(path: Path, parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except _OTHER_LAYOUT as error:
        raise _error(path, f"is not laid out as expected ({error!r})") from error


def _error(path: Path, problem: str) -> DumpError:
    return DumpError(
        where=str(path), problem=problem, fix="copy the file again from the model's folder"
    )


def _tokenizer_json(loaded: dict[str, Any]) -> TokenizerJson:
    model = loaded.get("model") or {}
    merges, pieces = model.get("merges"), model.get("vocab")
    if isinstance(pieces, list):  # unigram: pieces with scores, in the order of their ids
        pieces = {str(piece): number for number, (piece, _) in enumerate(pieces)}
    around = _around(loaded["post_processor"] or {}) if "post_processor" in loaded else None
    return TokenizerJson(
        vocabulary=None if pieces is None else _ids(pieces),
        merges=None if merges is None else _merges(merges),
        added={str(t["content"]): added_token(t) for t in loaded.get("added_tokens") or ()},
        begins_with=None if around is None else around[0],
        ends_with=None if around is None else around[1],
        padding_side=_side((loaded.get("padding") or {}).get("direction")),
        parts={
            **{name: loaded[name] for name in PARTS if name in loaded},
            "model": {k: v for k, v in model.items() if k not in ("vocab", "merges")},
        },
    )


def added_token(stated: Mapping[str, Any]) -> AddedToken:
    """Return an added token from its fields in a file.

    Raises:
        KeyError, TypeError, ValueError: It has no id.
    """
    flags = {name: stated[name] for name in _FLAGS if isinstance(stated.get(name), bool)}
    return AddedToken(int(stated["id"]), flags)


def _merges(stated: list[str] | list[list[str]]) -> tuple[Merge, ...]:
    """Return merges from ``"a b"`` (merges.txt, older tokenizer.json) or ``["a", "b"]``."""
    pairs = [tuple(one.split(" ") if isinstance(one, str) else one) for one in stated]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("a merge is not of two pieces")
    return tuple((str(first), str(second)) for first, second in pairs)


def _around(processor: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tokens that a post-processor puts before and after a single text."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    for inner in processor.get("processors") or ():
        outside = _around(inner)
        before, after = outside[0] + before, after + outside[1]
    if "cls" in processor:  # BertProcessing and RobertaProcessing
        before, after = (str(processor["cls"][0]),), (str(processor["sep"][0]),)
    pieces = processor.get("single") or ()
    names = [str(p["SpecialToken"]["id"]) if "SpecialToken" in p else None for p in pieces]
    if None in names:
        at = names.index(None)
        before, after = _stated(names[:at]), _stated(names[at:])
    return before, after


def _stated(names: list[str | None]) -> tuple[str, ...]:
    return tuple(name for name in names if name is not None)


def _side(direction: object) -> str | None:
    return direction.lower() if isinstance(direction, str) else None
