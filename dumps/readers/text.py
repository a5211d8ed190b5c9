"""Text of a file, whatever wraps it: the one way text-based readers get at lines.

Plain files, Jupyter notebooks and terminal recordings all come out as blocks of whole lines, each
line with the number a user finds it under in his editor. Markdown is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from align.core.errors import DumpError
from dumps.readers.containers import is_asciicast, is_notebook, unwrap_asciicast, unwrap_notebook
from dumps.readers.reader import HEAD_BYTES, Progress, no_progress

BLOCK_BYTES = 1 << 21
_LONGEST_LINE_BYTES = 1 << 24  # a longer "line" is cut, so that memory stays bounded

ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()*+][0-9A-Z]|[@-Z\\^_=>])?"
)
_ANSI_TEXT = re.compile(ANSI.pattern.decode("ascii"))
_RAY_PREFIX = re.compile(
    r"(?:\[\d+(?:;\d+)*m)?"  # colour whose escape byte was lost in copying
    r"\((?P<actor>[\w.:<>-]+)(?:\([^)]*\))? pid=\d+(?:, ip=[^)\s]+)?\)"
    r"(?:\[0m)? ?"
)
_REPEATED = re.compile(
    r"(?:\[\d+m)? ?\[repeated \d+x across cluster\](?:\[0m)?\s*(?:\([^)]*\))?\s*$"
)

_SIGNATURES = (
    (b"version https://git-lfs.github.com/spec/v1", "Git-LFS pointer"),
    (b"/annex/objects/", "git-annex pointer"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstandard data"),
    (b"\x04\x22\x4d\x18", "lz4 data"),
    (b"PK\x03\x04", "zip archive or torch checkpoint"),
    (b"7z\xbc\xaf\x27\x1c", "7-zip archive"),
    (b"PAR1", "parquet file"),
    (b"ARROW1", "Arrow file"),
    (b":W&B", "wandb datastore"),
    (b"MMIDIDX\x00", "Megatron index file"),
    (b"\x93NUMPY", "NumPy array"),
    (b"\x89HDF\r\n", "HDF5 file"),
    (b"SQLite format 3\x00", "SQLite database"),
    (b"\x89PNG\r\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"%PDF-", "PDF document"),
    (b"\x7fELF", "ELF binary"),
    (b"\x80\x02", "Python pickle"),
    (b"\x80\x03", "Python pickle"),
    (b"\x80\x04", "Python pickle"),
    (b"\x80\x05", "Python pickle"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_GIT_LINK = re.compile(rb"(?:\.{1,2}/)+[\w.+/-]+")
_REMEDIES = {
    "git symbolic link": "copy the file it names in its place",
    "Git-LFS pointer": "fetch the file itself with `git lfs pull`",
    "git-annex pointer": "fetch the file itself with `git annex get`",
    "gzip data": "unpack it with `gunzip`",
    "bzip2 data": "unpack it with `bunzip2`",
    "xz data": "unpack it with `unxz`",
    "zstandard data": "unpack it with `unzstd`",
    "lz4 data": "unpack it with `unlz4`",
    "7-zip archive": "unpack it with `7z x`",
    "tar archive": "unpack it with `tar xf`",
    "UTF-16 text": "convert it with `iconv -f UTF-16 -t UTF-8`",
    "empty file": "copy the file again, or leave it out",
    "text that ends in the middle of a UTF-8 character": "copy the file again: it was cut",
}


@lru_cache(maxsize=4)  # discovery lets every reader look at one file
def identify(head: bytes) -> str | None:
    """Name what a file's first bytes are, None for text.

    A parquet file or a gzip'd log named ``train.log`` is called what it is, so that a message can
    say what to do with it.
    """
    if not head:
        return "empty file"
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if b"brain.Event:" in head[:64]:
        return "TensorBoard event file"
    if head[257:262] == b"ustar":
        return "tar archive"
    if len(head) < 1024 and _GIT_LINK.fullmatch(head):
        return "git symbolic link"
    if head[8:9] == b"{" and head[5:8] == b"\0\0\0":
        return "safetensors file"
    num_control = sum(head.count(byte) for byte in _CONTROL_BYTES)
    return "binary data" if num_control > len(head) // 20 else None


def remedy_for(what: str) -> str | None:
    """Return how to make text of what `identify` named, None where nothing can."""
    return _REMEDIES.get(what)


_CONTROL_BYTES = [bytes([i]) for i in range(32) if i not in b"\t\n\r\x1b\x07\b\f"]


@dataclass(frozen=True, slots=True)
class Block:
    r"""Whole lines of a file, escape sequences and all.

    Args:
        data: bytes; lines end in ``\n``, except perhaps the last of the file.
        numbers: 1-based number, in the file as the user sees it, of each ``\n`` line of ``data``.
    """

    data: bytes
    numbers: Sequence[int]

    def numbers_at(self, offsets: Iterable[int]) -> Iterator[int]:
        """Yield the line number of each ascending byte offset into ``data``."""
        index = position = 0
        for offset in offsets:
            index += self.data.count(b"\n", position, offset)
            position = offset
            yield self.numbers[index]


def iter_blocks(path: Path, progress: Progress = no_progress) -> Iterator[Block]:
    """Yield the text of a file in blocks of about 2 MiB; memory does not grow with the file.

    Raises:
        DumpError: The file is not text, is empty or cannot be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise DumpError(
            where=str(path),
            problem=f"cannot be opened ({error.strerror})",
            fix="check the path and its permissions",
        ) from error
    what = identify(head)
    if what is not None:
        remedy = remedy_for(what) or "give the text it was made from, or leave it out"
        raise DumpError(where=str(path), problem=f"is not a log: {what}", fix=remedy)
    if is_notebook(head):
        yield from _numbered_blocks(unwrap_notebook(path, progress))
    elif is_asciicast(head):
        yield from _numbered_blocks(unwrap_asciicast(path, progress))
    else:
        yield from _plain_blocks(path, progress)


def iter_lines(path: Path, progress: Progress = no_progress) -> Iterator[tuple[int, str]]:
    r"""Yield ``(line number, text)`` of a text file.

    ``\n``, ``\r\n`` and ``\r`` separate; what a progress bar redrew with ``\r`` keeps the number
    of its ``\n`` line. Escape sequences are removed, invalid UTF-8 becomes U+FFFD, and empty
    pieces between redraws are dropped.
    """
    for block in iter_blocks(path, progress):
        rows = block.data.split(b"\n")
        if not rows[-1]:
            rows.pop()
        for number, row in zip(block.numbers, rows, strict=True):
            text = strip_ansi(row.decode("utf-8", "replace"))
            if "\r" not in text:
                yield number, text
            else:
                pieces = [piece for piece in text.split("\r") if piece]
                yield from ((number, piece) for piece in pieces or [""])


def ends_mid_character(tail: bytes) -> bool:
    """Tell whether a file whose last bytes are ``tail`` was cut inside a UTF-8 character."""
    for length in range(1, min(4, len(tail) + 1)):
        lead = tail[-length]
        if lead >= 0xC0:
            return length < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4)
        if lead < 0x80:
            return False
    return False


def strip_ansi(text: str) -> str:
    """Remove terminal escape sequences (colour, cursor, title)."""
    return _ANSI_TEXT.sub("", text) if "\x1b" in text else text


def strip_prefix(line: str) -> tuple[str | None, str]:
    """Split Ray's prefixes from a line without escape sequences.

    Returns:
        The innermost actor's name, None without a prefix, and the rest of the line; Ray's
        "[repeated Nx across cluster]" at its end is removed as well.
    """
    actor, rest = None, line
    while (prefix := _RAY_PREFIX.match(rest)) is not None:
        actor, rest = prefix["actor"], rest[prefix.end() :]
    if "[repeated " in rest:
        rest = _REPEATED.sub("", rest)
    return actor, rest


def _plain_blocks(path: Path, progress: Progress) -> Iterator[Block]:
    first_line, carry = 1, b""
    with path.open("rb") as file:
        while chunk := file.read(BLOCK_BYTES):
            progress(len(chunk))
            data = carry + chunk
            end = data.rfind(b"\n") + 1
            if not end and len(data) > _LONGEST_LINE_BYTES:
                end = (data.rfind(b"\r") + 1) or len(data)
            data, carry = data[:end], data[end:]
            if data:
                num_lines = data.count(b"\n")
                is_cut = not data.endswith(b"\n")
                yield Block(data, range(first_line, first_line + num_lines + is_cut))
                first_line += num_lines
    if carry:
        yield Block(carry, range(first_line, first_line + 1))


def _numbered_blocks(lines: Iterable[tuple[int, str]]) -> Iterator[Block]:
    rows: list[bytes] = []
    numbers: list[int] = []
    size = 0
    for number, line in lines:
        rows.append(line.encode("utf-8", "replace") + b"\n")
        numbers.append(number)
        size += len(rows[-1])
        if size > BLOCK_BYTES:
            yield Block(b"".join(rows), numbers)
            rows, numbers, size = [], [], 0
    if rows:
        yield Block(b"".join(rows), numbers)
