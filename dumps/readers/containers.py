"""Console text inside other files: Jupyter notebooks and asciicast terminal recordings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from dumps.readers.reader import Progress

_NOTEBOOK = re.compile(rb'\s*\{.*"(?:cells|nbformat|worksheets)"\s*:', re.DOTALL)
_NOTEBOOK_CELL = re.compile(rb'"cell_type"\s*:')
_ASCIICAST = re.compile(rb'\s*\{[^\n]*"version"\s*:\s*[23]\b')
_ASCIICAST_SIZE = re.compile(rb'"(?:width|height|term)"\s*:')
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"(?P<is_key>\s*:)?', re.DOTALL)
_TEXT_KEYS = frozenset({"source", "text", "text/plain", "traceback", "input"})


def is_notebook(head: bytes) -> bool:
    """Tell whether a file starts like a Jupyter notebook."""
    return bool(_NOTEBOOK.match(head) and _NOTEBOOK_CELL.search(head))


def is_asciicast(head: bytes) -> bool:
    """Tell whether a file starts like an asciicast v2 or v3 recording."""
    first_line = head.partition(b"\n")[0]
    return bool(_ASCIICAST.match(first_line) and _ASCIICAST_SIZE.search(first_line))


def unwrap_notebook(path: Path, progress: Progress) -> Iterator[tuple[int, str]]:
    """Yield the sources and printed outputs of a notebook's cells, line by line.

    The number is the line of the ``.ipynb`` file itself. The text is scanned, not parsed as one
    document, so that a truncated notebook gives what it has.
    """
    data = path.read_bytes()
    progress(len(data))
    yield from _joined_lines(_notebook_pieces(data.decode("utf-8", "replace")))


def unwrap_asciicast(path: Path, progress: Progress) -> Iterator[tuple[int, str]]:
    """Yield what a recorded terminal showed; the number is the line of the recording."""
    yield from _joined_lines(_asciicast_pieces(path, progress))


def _notebook_pieces(document: str) -> Iterator[tuple[int, str]]:
    """Yield the strings under text keys; a new key ends the line that was open."""
    key, line, position = "", 1, 0
    for match in _JSON_STRING.finditer(document):
        line += document.count("\n", position, match.start())
        position = match.start()
        if match["is_key"]:
            if key in _TEXT_KEYS:
                yield line, "\n"
            key = match.group()[1:].partition('"')[0]
        elif key in _TEXT_KEYS:
            text = _json_string(match.group())
            # A traceback's entries are lines without their "\n".
            yield line, text + "\n" if key == "traceback" else text


def _json_string(literal: str) -> str:
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:  # a bad escape: the raw text still holds the numbers
        return literal[1:-1]


def _asciicast_pieces(path: Path, progress: Progress) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, row in enumerate(file, 1):
            progress(len(row))
            try:
                event = json.loads(row)
            except ValueError:  # the last event of a recording that was killed
                continue
            if isinstance(event, list) and len(event) == 3 and event[1] == "o":
                yield number, str(event[2])


def _joined_lines(pieces: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Cut pieces at newlines; a line is numbered where it starts, empty lines are dropped."""
    number, open_text = 0, ""
    for piece_number, piece in pieces:
        *complete, rest = piece.split("\n")
        for text in complete:
            line = open_text + text.rstrip("\r")
            if line:
                yield number if open_text else piece_number, line
            open_text = ""
        number = number if open_text else piece_number
        open_text += rest
    if open_text:
        yield number, open_text
