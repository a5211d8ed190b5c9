"""Find where a log prints something, and follow the lines of the process that prints it.

Other processes write between those lines and into them; Ray's prefix tells whose a piece is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dumps.readers.reader import Progress
from dumps.readers.text import iter_blocks, strip_ansi

_PREFIX = re.compile(
    r"(?:\[\d+(?:;\d+)*m)?(?P<who>\((?:[\w.:<>-]+(?:\([^)]*\))? )?pid=\d+(?:, ip=[^)\s]+)?\))"
    r"(?:\[0m)? ?"
)
_REPEATED = re.compile(r"(?:\[\d+m)?\s*\[repeated \d+x across cluster\].*$")
_MAX_ROWS = 50_000  # of all processes, from the start of what is printed on


@dataclass(frozen=True, slots=True)
class Row:
    """One line, or what one process wrote of it."""

    number: int
    text: str
    is_last: bool  # the file ends here, perhaps in the middle of the line


class Rows:
    r"""The ``\n`` lines of a file, decoded only from a start on; memory stays bounded.

    Args:
        start: finds what is printed; the line its match begins in is the first one.
    """

    def __init__(self, path: Path, start: re.Pattern[bytes], progress: Progress) -> None:
        self._start = start
        self._blocks = iter_blocks(path, progress)
        self._data = b""
        self._numbers: Iterator[int] = iter(())
        self._position = 0

    def find_start(self) -> Row | None:
        """Go to the next start and take its line; None at the end of the file."""
        while True:
            match = self._start.search(self._data, self._position)
            if match is not None:
                self._skip_to(self._data.rfind(b"\n", 0, match.start()) + 1)
                return self._take()
            if not self._next_block():
                return None

    def following(self, *, stops_at_start: bool = True) -> Iterator[Row]:
        """Yield the next lines, as a rule up to another start."""
        for _ in range(_MAX_ROWS):
            if self._position >= len(self._data) and not self._next_block():
                return
            if stops_at_start and self._start.search(self._data, self._position, self._end()):
                return
            yield self._take()

    def _end(self) -> int:
        end = self._data.find(b"\n", self._position)
        return len(self._data) if end < 0 else end

    def _skip_to(self, begin: int) -> None:
        num_lines = self._data.count(b"\n", self._position, begin)
        next(islice(self._numbers, num_lines, num_lines), None)
        self._position = max(begin, self._position)

    def _take(self) -> Row:
        end = self._end()
        row = self._data[self._position : end].decode("utf-8", "replace")
        self._position = end + 1
        return Row(next(self._numbers), strip_ansi(row), is_last=end == len(self._data))

    def _next_block(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            self._position = len(self._data)
            return False
        self._data, self._numbers, self._position = block.data, iter(block.numbers), 0
        return True


@dataclass(frozen=True, slots=True)
class Margin:
    """What stands before each printed line: its process, and perhaps a log shipper's stamp."""

    owner: str | None  # "(TaskRunner pid=17)"
    stamp: re.Pattern[str] | None

    @classmethod
    def before(cls, text: str, begin: int) -> Margin:
        """Read the margin of a first line whose printed part begins at ``begin``."""
        prefixes = list(_PREFIX.finditer(text, 0, begin))
        stamp = text[prefixes[-1].end() if prefixes else 0 : begin]
        # A time stamp has other digits on every line.
        pattern = re.compile(re.sub(r"\d+", r"\\d+", re.escape(stamp))) if stamp else None
        return cls(prefixes[-1]["who"] if prefixes else None, pattern)

    def own(self, rows: Iterable[Row]) -> Iterator[Row | None]:
        """Yield what the owner wrote, without its margin; None for a row of somebody else."""
        for row in rows:
            for piece in row.text.split("\r"):
                texts = [t for who, t in _segments(piece) if who == self.owner and t.strip()]
                yield from (Row(row.number, self._cut(text), row.is_last) for text in texts)
                if not texts and piece.strip():
                    yield None

    def _cut(self, text: str) -> str:
        found = self.stamp.match(text) if self.stamp else None
        return text[found.end() :] if found else text


def _segments(text: str) -> Iterator[tuple[str | None, str]]:
    """Cut a line where a process's prefix stands in the middle of it."""
    who, begin = None, 0
    for prefix in _PREFIX.finditer(text):
        yield who, text[begin : prefix.start()]
        who, begin = prefix["who"], prefix.end()
    yield who, _REPEATED.sub("", text[begin:])
