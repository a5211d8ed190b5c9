"""Console logs of training frameworks: which one a file is, and its metric lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from align.core.finding import Evidence
from align.core.metric import MetricLog
from dumps.readers.containers import is_asciicast, is_notebook
from dumps.readers.last_error import LastError
from dumps.readers.metric_rows import MetricRows, PrintedLines, merge_rows, unwrap_numbers
from dumps.readers.reader import Glimpse, Progress
from dumps.readers.text import ANSI, Block, ends_mid_character, identify, iter_blocks

_KEY_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/.@-"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one framework prints to the console.

    Args:
        framework: name of its module in align/frameworks.
        anchor: starts a metric line, group 1 is the step; begins with a literal, for speed.
        metric_line: an anchor and its first pair, to know a file by.
        marker: what only this framework's paths and messages hold.
        separator: between two pairs.
    """

    framework: str
    anchor: re.Pattern[bytes]
    metric_line: re.Pattern[bytes]
    marker: re.Pattern[bytes]
    separator: bytes


VERL = Dialect(
    framework="verl",
    anchor=re.compile(rb"step:(?:\x1b\[[\d;]*m)*(\d{1,12})(?:\x1b\[[\d;]*m)* - "),
    metric_line=re.compile(rb"step:\d{1,12} - [^\s:][^:\n]{0,100}:\s*(?:[a-z][\w.]*\()?[-+\dni]"),
    marker=re.compile(
        rb"verl[./](?:trainer|workers|single_controller|utils|third_party)|main_ppo|actor_rollout_"
    ),
    separator=b" - ",
)
MINDSPEED_RL = Dialect(
    framework="mindspeed_rl",
    anchor=re.compile(rb"iteration:\s*(\d{1,12})\s*/\s*\d+\s*\|"),
    metric_line=re.compile(rb"iteration:\s*\d{1,12}\s*/\s*\d+\s*\|\s*[^\s:|][^:|\n]{0,100}\s:\s"),
    marker=re.compile(rb"(?i:mindspeed[-_]rl)|megatron_training|ActorHybridWorker|RayGRPOTrainer"),
    separator=b" | ",
)
_DIALECTS = (VERL, MINDSPEED_RL)
_RAY_PREFIX = re.compile(rb"\(\w+ pid=\d+(?:, ip=[^)\s]+)?\)")
_TRACEBACK = re.compile(rb"Traceback \(most recent call last\)")
_JSON = re.compile(rb"\s*[\[{]\s*[\"\[{\]}]")


def dialect_of(glimpse: Glimpse) -> Dialect | None:
    """Tell whose console log a file is; None for anything else.

    A metric line anywhere decides. A log that never came to one is known by Ray's prefixes or a
    traceback, and by the framework's own paths in them.
    """
    head = glimpse.head
    if identify(head) is not None:
        return None
    if _JSON.match(head) and not is_notebook(head) and not is_asciicast(head):
        return None
    for dialect in _DIALECTS:
        if glimpse.search(dialect.metric_line):
            return dialect
    has_prefix = glimpse.search(_RAY_PREFIX) is not None
    if has_prefix or glimpse.search(_TRACEBACK):
        for dialect in (MINDSPEED_RL, VERL):
            if glimpse.search(dialect.marker):
                return dialect
    return VERL if has_prefix else None


def read_console(
    path: Path, format: str, dialect: Dialect, rows: MetricRows, progress: Progress
) -> MetricLog:
    """Read a log once: its metric lines through ``rows``, the rest only for the last error.

    Raises:
        DumpError: The file is not text, or is empty.
    """
    last_error = LastError(str(path))
    num_lines, tail = 0, b""
    for block in iter_blocks(path, progress):
        # Same length, so offsets hold: a redraw by "\r" ends a printed line like "\n" does.
        text = block.data.replace(b"\r", b"\n")
        if not text.endswith(b"\n"):
            text += b"\n"
        last_error.see(block, text, read_block(block, text, dialect, rows))
        num_lines += block.data.count(b"\n") + (not block.data.endswith(b"\n"))
        tail = block.data[-4:]
    return _metric_log(path, format, dialect, rows, num_lines, last_error.evidence(), tail)


def read_block(block: Block, text: bytes, dialect: Dialect, rows: MetricRows) -> int:
    """Add the block's metric lines to ``rows``; return where the last of them ends, else 0."""
    anchors = [
        match
        for match in dialect.anchor.finditer(text)
        if not match.start() or text[match.start() - 1] not in _KEY_BYTES
    ]
    if not anchors:
        return 0
    begins = [match.start() for match in anchors]
    starts = [match.end() for match in anchors]
    newlines = [text.find(b"\n", start) for start in starts]
    # A line ends at its newline, or where the next one is glued to it.
    ends = list(map(min, newlines, [*begins[1:], len(text)]))
    pairs = _clean(
        [text[start:end] for start, end in zip(starts, ends, strict=True)], text, dialect
    )
    steps = [int(match[1]) for match in anchors]
    rows.add(PrintedLines(steps, list(block.numbers_at(begins)), pairs))
    return ends[-1]


def _clean(pairs: list[bytes], text: bytes, dialect: Dialect) -> list[bytes]:
    """Remove colour and number wrappers, if the block has any, and a separator at the end."""
    if b"\x1b" in text:
        pairs = [ANSI.sub(b"", line) if b"\x1b" in line else line for line in pairs]
    if b"np." in text or b"tensor(" in text:
        pairs = [unwrap_numbers(line, dialect.separator) for line in pairs]
    return [line.rstrip(dialect.separator) for line in pairs]


def _metric_log(
    path: Path,
    format: str,
    dialect: Dialect,
    rows: MetricRows,
    num_lines: int,
    last_error: Evidence | None,
    tail: bytes,
) -> MetricLog:
    is_known = rows.num_rows > 0 or _has_marker(path, dialect)
    series, num_overwritten = merge_rows(rows.layouts, str(path), dialect.framework)
    notes = []
    if not rows.num_rows:
        stops = "" if last_error else f" and no error before it stops in line {num_lines}"
        notes.append(f"no metric line: the run printed no step{stops}")
    if num_overwritten:
        notes.append(
            f"{num_overwritten} values of repeated steps were replaced by later lines: "
            "the run was resumed, or the file holds two runs"
        )
    if ends_mid_character(tail):
        notes.append("ends in half a UTF-8 character: the file was cut")
    num_keys = [len(set(layout.keys)) for layout in rows.layouts]
    return MetricLog(
        source=str(path),
        format=format,
        framework=dialect.framework if is_known else None,
        series=series,
        num_lines=num_lines,
        num_metric_lines=rows.num_rows,
        min_keys_per_line=min(num_keys, default=0),
        max_keys_per_line=max(num_keys, default=0),
        num_overwritten=num_overwritten,
        skipped=tuple(rows.skipped),
        num_skipped=rows.num_skipped,
        last_error=last_error,
        notes=tuple(notes),
    )


def _has_marker(path: Path, dialect: Dialect) -> bool:
    return Glimpse(path, path.stat().st_size).search(dialect.marker) is not None
