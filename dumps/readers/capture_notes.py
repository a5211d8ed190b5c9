"""The small files a capture keeps beside its data: plan, index, timings, generators, log.

Commands read them by their place; to a report they are neither data nor unknown.
"""

from __future__ import annotations

import re
from pathlib import Path

from align.core.run import ArtifactKind
from dumps.readers.json_lines import first_object
from dumps.readers.reader import Glimpse, Progress, Reader

FORMAT = "capture_notes"
_LOG_LINE = re.compile(
    rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [\w -]+ pid \d+: (?:failed|stopped|dropped|un)"
)
_PLAN = (b'"stops_on_error"', b'"schema_version"')
_KEYS = (
    frozenset({"file", "sha256", "size_bytes", "step"}),
    frozenset({"step", "whole"}),
    frozenset({"step", "tap_s", "sketch_s", "writer_s"}),
)


def read(path: Path, progress: Progress) -> str:
    """Return the text."""
    progress(path.stat().st_size)
    return path.read_text(encoding="utf-8", errors="replace")


def _sniff(glimpse: Glimpse) -> bool:
    head = glimpse.head
    if _LOG_LINE.match(head) or (head.startswith(b"{\n") and all(key in head for key in _PLAN)):
        return True
    row = first_object(glimpse)
    return row is not None and (row.keys() in _KEYS or {"step", "python"} <= row.keys() <= _RNG)


_RNG = frozenset({"step", "python", "numpy", "torch", "cuda", "npu"})

READER = Reader(FORMAT, ArtifactKind.CAPTURE, _sniff, read, priority=5)
