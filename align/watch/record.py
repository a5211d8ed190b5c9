"""What a watch saw, written after every look that brought something."""

from __future__ import annotations

import json
from pathlib import Path

from align.core.errors import RunError
from align.watch.watch import Standing, Watch
from align.watch.words import as_record
from dumps.store.atomic import write_atomic


class Recorder:
    """Writes one file anew, so that a reader never sees half of it; nothing without a path."""

    def __init__(self, path: Path | None, reference: str, candidate: str) -> None:
        self._path, self._reference, self._candidate = path, reference, candidate
        self._is_written = False

    def write(self, watch: Watch, standing: Standing) -> None:
        """Write the record where the look brought something, and once at the beginning.

        Raises:
            RunError: The file cannot be written.
        """
        if self._path is None or (self._is_written and not standing.has_news):
            return
        record = as_record(standing, watch.traces(), self._reference, self._candidate)
        try:
            write_atomic(self._path, json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise RunError(
                where=str(self._path),
                problem=f"cannot be written ({error.strerror or error})",
                fix="choose another file with -o",
            ) from error
        self._is_written = True
