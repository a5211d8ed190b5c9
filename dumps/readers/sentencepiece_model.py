"""A SentencePiece model (``tokenizer.model``): its pieces and the settings that change ids.

The file is one protobuf message. Only its published fields are walked, and nothing is executed:
ModelProto 1 = pieces (1 text, 2 score, 3 type), 2 = trainer (3 model type, 35 byte fallback,
40 to 43 ids of unk, bos, eos and pad), 3 = normalizer (1 name, 2 its compiled map, 3 dummy
prefix, 4 extra spaces, 5 escaped spaces).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path

from align.core.errors import DumpError

MAX_BYTES = 64 << 20  # the largest known, of 256 k pieces, has 4 MB
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_Value = int | bytes


class PieceType(IntEnum):
    """What a piece is for, as the file numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece; its id is its place in the file. ``score`` is float32."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What the file holds.

    Args:
        kind: "unigram", "bpe", "word" or "char".
        roles: ids of "unk", "bos", "eos" and "pad"; -1 where the model has none.
        normalizer: settings by name, the compiled map as its hash.
    """

    pieces: tuple[Piece, ...]
    kind: str
    byte_fallback: bool
    roles: Mapping[str, int]
    normalizer: Mapping[str, str | bool]
    normalizer_map: bytes


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a SentencePiece model.

    Raises:
        DumpError: It is too large, cut off, or no such message.
    """
    if path.stat().st_size > MAX_BYTES:
        raise _error(path, f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        return parse_sentencepiece(path.read_bytes())
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise _error(path, f"is no whole SentencePiece model ({error})") from error


def parse_sentencepiece(data: bytes) -> SentencePieceModel:
    """Parse the message.

    Raises:
        ValueError, IndexError, TypeError, struct.error: It is cut off, or another message.
    """
    pieces = []
    trainer: dict[int, _Value] = {}
    normalizer: dict[int, _Value] = {}
    for number, value in fields(data):
        if number == 1:
            pieces.append(_piece(_as_bytes(value)))
        elif number == 2:
            trainer = dict(fields(_as_bytes(value)))
        elif number == 3:
            normalizer = dict(fields(_as_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    compiled = _as_bytes(normalizer.get(2, b""))
    return SentencePieceModel(
        pieces=tuple(pieces),
        kind=_MODEL_TYPES.get(_as_int(trainer.get(3, 1)), "unknown"),
        byte_fallback=bool(trainer.get(35, 0)),
        roles={
            name: _signed(_as_int(trainer.get(number, default)))
            for name, number, default in (
                ("unk", 40, 0),
                ("bos", 41, 1),
                ("eos", 42, 2),
                ("pad", 43, -1),
            )
        },
        normalizer={
            "name": _as_bytes(normalizer.get(1, b"")).decode("utf-8"),
            "map": blake2b(compiled, digest_size=8).hexdigest(),
            "add_dummy_prefix": bool(normalizer.get(3, 1)),
            "remove_extra_whitespaces": bool(normalizer.get(4, 1)),
            "escape_whitespaces": bool(normalizer.get(5, 1)),
        },
        normalizer_map=compiled,
    )


def fields(data: bytes) -> Iterator[tuple[int, _Value]]:
    """Yield the fields of a protobuf message: number and value.

    Raises:
        ValueError, IndexError, struct.error: It is cut off, or no protobuf message.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: _Value
        if wire == _VARINT:
            value, at = _varint(data, at)
        elif wire == _BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"field {number} has wire type {wire}")
        if number == 0 or at > len(data):
            raise ValueError("a field ends after the file does")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is longer than 10 bytes")


def _piece(data: bytes) -> Piece:
    stated = dict(fields(data))
    (score,) = struct.unpack("<f", _as_bytes(stated.get(2, bytes(4))))
    return Piece(
        _as_bytes(stated.get(1, b"")).decode("utf-8"),
        float(score),
        _as_int(stated.get(3, int(PieceType.NORMAL))),
    )


def _as_bytes(value: _Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("a number stands where text is expected")
    return value


def _as_int(value: _Value) -> int:
    if not isinstance(value, int):
        raise TypeError("text stands where a number is expected")
    return value


def _signed(value: int) -> int:
    """Return an int32 of its 64-bit varint, such as -1 for "none"."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _error(path: Path, problem: str) -> DumpError:
    return DumpError(
        where=str(path), problem=problem, fix="copy the file again from the model's folder"
    )
