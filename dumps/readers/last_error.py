"""The last error a console log shows: what a run that stopped should be asked about first."""

from __future__ import annotations

import re
from collections import deque

from align.core.finding import Evidence, Side
from dumps.readers.text import Block, strip_ansi, strip_prefix

# An exception or a device error says what happened; "ERROR executing job" only that it did.
_FATAL = re.compile(
    r"""
    ^(?:\[rank\d+\]:\ |E\s+)?(?:[a-zA-Z_]\w*\.)*
        (?!\w*Warning)[A-Z]\w*(?:Error|Exception|Interrupt|Timeout|Died)(?:\(\w+\))?(?:$|:\ |:$)
    | \b(?:E[A-Z]\d{4}:|ERR\d{5}\b)                       # CANN (EI0006: …) and torch_npu
    | \bout\ of\ memory\b
    | \b(?:HCCL|NCCL)\s(?:function\s)?error\b
    | ^(?:Killed|Terminated|Segmentation\ fault|Aborted|Bus\ error)\b
    | \bSIG(?:KILL|SEGV|ABRT|BUS)\b | \bwas\ killed\b
    | ^Could\ not\ (?:override|append)\ ' | ^Key\ '[^']*'\ is\ not\ in\ struct  # Hydra
    | ^[\w./-]+\.py:\ error:\                            # argparse
    """,
    re.VERBOSE,
)
_WEAK = re.compile(
    r"""
    \bError\ executing\ job\b
    | ^(?:\[?\d{4}-[^\]]{6,30}\]?\s)?\W?(?:ERROR|CRITICAL|FATAL)\b
    | \s-\s(?:ERROR|CRITICAL)\s
    | \[\d{4}-\d\d-\d\d\ [\d:,.]+\ [EF]\ \d+\ \d+\]       # Ray's own processes
    """,
    re.VERBOSE,
)
# Logged as errors by services around the run, which goes on without them.
_AROUND_THE_RUN = re.compile(
    r"\bfile_system_monitor\.cc\b|\bgit root error\b|\bmetrics (?:exporter )?agent\b"
)
_NEEDLES = (
    b"Error",
    b"ERR",
    b"Exception",
    b"Interrupt",
    b"Timeout",
    b"Died",
    b"memory",
    b"illed",
    b"SIG",
    b"fault",
    b"Abort",
    b"Terminat",
    b"CRITICAL",
    b"FATAL",
    b" E ",
    b"EI",
    b"EZ",
    b"EE",
    b"EH",
    b"EJ",
    b"EL",
    b"Could not",
    b"not in struct",
    b": error:",
)
_TRACEBACK = b"Traceback (most recent call last)"
_IGNORED = b"Exception ignored in"  # Python's word for one raised while it shuts down
_MAX_PENDING = 4  # blocks; most are discarded unread when the next metric line comes
_MAX_TRIES = 200  # candidates a block, each needle: chatter must not make reading slow
_QUOTED_CHARS = 200


class LastError:
    """Watches the blocks of a log go by and finds its last error line."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._pending: deque[tuple[Block, bytes, int]] = deque()
        self._fatal: Evidence | None = None
        self._weak: Evidence | None = None

    def see(self, block: Block, text: bytes, start: int) -> None:
        r"""Note a block; ``text`` is the block with ``\r`` as ``\n``.

        A ``start`` above 0 is where a metric line ended: the run survived whatever came before.
        """
        if start:
            self._pending.clear()
            self._fatal = self._weak = None
        self._pending.append((block, text, start))
        if len(self._pending) > _MAX_PENDING:
            self._examine(*self._pending.popleft())

    def evidence(self) -> Evidence | None:
        """Return the line after the last metric line, an exception before a mere "ERROR"."""
        while self._pending:
            self._examine(*self._pending.popleft())
        return self._fatal or self._weak

    def _examine(self, block: Block, text: bytes, start: int) -> None:
        self._fatal = self._find(block, text, start, _FATAL) or self._fatal
        if self._fatal is None:
            self._weak = self._find(block, text, start, _WEAK) or self._weak

    def _find(
        self, block: Block, text: bytes, start: int, pattern: re.Pattern[str]
    ) -> Evidence | None:
        found = [_last_match(text, start, needle, pattern) for needle in _NEEDLES]
        position, quote = max(filter(None, found), default=(0, ""))
        if not quote:
            return None
        (number,) = block.numbers_at([position])
        return Evidence(self._source, Side.BOTH, number, text=quote[:_QUOTED_CHARS])


def _last_match(
    text: bytes, start: int, needle: bytes, pattern: re.Pattern[str]
) -> tuple[int, str] | None:
    """Return start and text of the last line that holds ``needle`` and matches."""
    end = len(text)
    for _ in range(_MAX_TRIES):
        position = text.rfind(needle, start, end)
        if position < 0:
            return None
        begin = max(text.rfind(b"\n", start, position) + 1, start, position - 500)
        stop = text.find(b"\n", position, position + 500)
        row = text[begin : stop if stop >= 0 else position + 500]
        line = strip_prefix(strip_ansi(row.decode("utf-8", "replace")))[1].strip()
        if _is_error(line, pattern) and not _is_ignored(text, start, begin):
            return begin, line
        end = begin
    return None


def _is_error(line: str, pattern: re.Pattern[str]) -> bool:
    return pattern.search(line) is not None and not _AROUND_THE_RUN.search(line)


def _is_ignored(text: bytes, start: int, begin: int) -> bool:
    """Tell whether the exception named at ``begin`` ends a traceback that Python ignored."""
    header = text.rfind(_IGNORED, max(start, begin - 20_000), begin)
    if header < 0:
        return False
    announced, *body = text[header:begin].splitlines()[1:] or [b""]
    return _TRACEBACK in announced and all(_own_text(row).startswith(" ") for row in body)


def _own_text(row: bytes) -> str:
    return strip_prefix(strip_ansi(row.decode("utf-8", "replace")))[1]
