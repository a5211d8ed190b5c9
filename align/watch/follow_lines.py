"""The whole lines that were added to a text file, through rotation and truncation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES = 4 << 20


class LineFollower:
    """Reads what is new in one file.

    The file stays open, so that what was written before a rotation is not lost: the old file is
    read to its end, then the new one from its start. A file that shrank is read again from its
    start. Half a line waits for its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def read(self) -> Iterator[bytes]:
        """Yield blocks of whole lines; nothing where the file does not exist (yet)."""
        if self._file is None and not self._open():
            return
        yield from self._new_lines()
        if self._was_replaced():
            self.close()
            if self._open():
                yield from self._new_lines()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _open(self) -> bool:
        try:
            self._file = self._path.open("rb")
        except OSError:
            return False
        return True

    def _new_lines(self) -> Iterator[bytes]:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        while block := self._file.read(_BLOCK_BYTES):
            text = self._rest + block
            end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            self._rest = text[end:]
            if end:
                yield text[:end]

    def _was_replaced(self) -> bool:
        assert self._file is not None
        try:
            now = self._path.stat()
        except OSError:
            return False  # between the two steps of a rotation, or removed
        ours = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino)
