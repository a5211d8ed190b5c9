"""JSON documents one a line: the one way JSONL readers get at them.

A line that is not JSON is never fatal and never silent: it comes out with the reason. Memory is
bounded by the longest line accepted, whatever the file's size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dumps.readers.reader import Glimpse, Progress, no_progress

MAX_LINE_BYTES = 1 << 26  # 64 MiB; a longer line is no row of text but damage
_PROGRESS_BYTES = 1 << 20
_SNIFFED_LINES = 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a line holds no JSON object."""

    why: str


def iter_objects(
    path: Path, progress: Progress = no_progress
) -> Iterator[tuple[int, dict[str, Any] | Unreadable, int]]:
    """Yield (1-based line, JSON object or why there is none, size in bytes); skip blank lines."""
    reported = 0
    for line, data in iter_raw(path):
        reported += len(data)
        if reported >= _PROGRESS_BYTES:
            progress(reported)
            reported = 0
        if not data.isspace():
            yield line, parse_object(data), len(data)
    progress(reported)


def iter_raw(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield (1-based line, bytes) split at "\n" only; JSON text holds no raw line breaks.

    Of a line beyond `MAX_LINE_BYTES` only that much comes out, which then is no JSON.
    """
    with path.open("rb", buffering=_PROGRESS_BYTES) as file:
        line = 1
        while data := file.readline(MAX_LINE_BYTES):
            yield line, data.removeprefix(_BOM) if line == 1 else data
            while not data.endswith(b"\n") and len(data) == MAX_LINE_BYTES:
                data = file.readline(MAX_LINE_BYTES)
            line += 1


def parse_object(data: bytes) -> dict[str, Any] | Unreadable:
    """Parse one line.

    orjson is strict; what it refuses but Python writes (NaN, Infinity, lone surrogates of a
    response that was cut inside a character) is left to the json module. A lone surrogate stays;
    half a UTF-8 character becomes U+FFFD.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(_decode(data))
        except json.JSONDecodeError as error:
            return Unreadable(_reason(data, error))
        except (ValueError, RecursionError) as error:  # a number or a nesting beyond all bounds
            return Unreadable(f"not JSON ({str(error)[:80]})")
    return value if isinstance(value, dict) else Unreadable("not a JSON object")


def first_object(glimpse: Glimpse) -> dict[str, Any] | None:
    """Return the first JSON object among the first lines, None where there is none."""
    for data in _first_lines(glimpse):
        if data.lstrip().startswith(b"{"):
            value = parse_object(data)
            if isinstance(value, dict):
                return value
    return None


def _first_lines(glimpse: Glimpse) -> list[bytes]:
    head = glimpse.head.removeprefix(_BOM)
    lines = head.split(b"\n", _SNIFFED_LINES)[:_SNIFFED_LINES]
    if len(lines) > 1 or glimpse.size_bytes <= len(glimpse.head):
        return lines
    if not head.lstrip().startswith(b"{"):
        return []
    with glimpse.path.open("rb") as file:  # a first row longer than the glimpse
        return [file.readline(MAX_LINE_BYTES).removeprefix(_BOM)]


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _reason(data: bytes, error: json.JSONDecodeError) -> str:
    if len(data) == MAX_LINE_BYTES:
        return f"longer than {MAX_LINE_BYTES >> 20} MiB"
    return f"not JSON ({error.msg} at column {error.colno})"
