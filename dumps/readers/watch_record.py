"""What ``align watch -o`` writes: alarms, and each tested metric's distance step by step."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from align.core.document import float_from_json
from align.core.errors import DumpError
from align.core.run import ArtifactKind
from align.core.watch_record import Alarm, Trace, WatchRecord
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

FORMAT = "watch_record"

_SIGN = re.compile(rb'\A\s*\{\s*"schema_version"\s*:\s*1\s*,\s*"format"\s*:\s*"align_watch"')


def _sniff(glimpse: Glimpse) -> bool:
    return _SIGN.match(glimpse.head) is not None


def read_watch(path: Path, progress: Progress = no_progress) -> WatchRecord:
    """Read a record.

    Raises:
        DumpError: It is cut off, or a field is missing or of another type.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    progress(len(text))
    try:
        return _record(str(path), json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DumpError(
            where=str(path),
            problem=f"is no record of a watch ({type(error).__name__}: {error})",
            fix="write it again with `align watch -o`",
        ) from error


def _record(source: str, document: Mapping[str, Any]) -> WatchRecord:
    step = document["step"]
    return WatchRecord(
        source=source,
        reference=str(document["reference"]),
        candidate=str(document["candidate"]),
        step=None if step is None else int(step),
        last_step=int(document["last_step"]),
        alarms=tuple(
            Alarm(
                metric=str(alarm["metric"]),
                step=int(alarm["step"]),
                since=int(alarm["since"]),
                reference=float_from_json(alarm["reference"]),
                candidate=float_from_json(alarm["candidate"]),
                deviation=float_from_json(alarm["standard_errors"]),
            )
            for alarm in document["alarms"]
        ),
        traces=tuple(
            Trace(
                metric=str(trace["metric"]),
                steps=tuple(map(int, trace["steps"])),
                deviations=tuple(map(float_from_json, trace["standard_errors"])),
                sizes=tuple(map(float_from_json, trace["sizes"])),
                limit=float_from_json(trace["limit"]),
            )
            for trace in document["traces"]
        ),
    )


READER = Reader(FORMAT, ArtifactKind.WATCH, _sniff, read_watch, sole_role=True)
