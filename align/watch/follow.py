"""Everything a running job writes its metrics to: one file, a TensorBoard folder, a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from align.core.run import ArtifactKind
from align.watch.sources import EventSource, News, Source, TextSource, WholeFile
from dumps.store.discover import SKIPPED_FOLDERS, examine

_LOG_ENDINGS = (".log", ".txt", ".out", ".err", "")
_MOST_TRIALS = 8  # a file that no reader knew so often is none of ours
_MOST_FILES = 5000


class Follower:
    """Polls all files under a path; files may appear, rotate, shrink and vanish."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sources: dict[Path, Source] = {}
        self._trials: dict[Path, tuple[int, int]] = {}  # size when last tried, number of trials

    def poll(self) -> Iterator[News]:
        """Yield what is new in every file, in path order."""
        for path in self._files():
            source = self._sources.get(path) or self._try(path)
            if source is not None:
                self._sources[path] = source
        for path in sorted(self._sources):
            yield from self._sources[path].poll()

    def _files(self) -> Iterator[Path]:
        if not self._path.is_dir():
            yield self._path
            return
        num = 0
        for folder, folders, names in os.walk(self._path):
            folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
            for name in sorted(names):
                num += 1
                if num > _MOST_FILES:
                    return
                yield Path(folder, name)

    def _try(self, path: Path) -> Source | None:
        """Find out how to follow a file; None where that is not known (yet)."""
        try:
            size = path.stat().st_size
        except OSError:
            return TextSource(path) if path == self._path else None
        tried, num = self._trials.get(path, (0, 0))
        if size == tried or num >= _MOST_TRIALS:
            return None
        self._trials[path] = size, num + 1
        if "tfevents" in path.name:
            return EventSource(path)
        known = _format_of(path)
        is_log = path == self._path or path.suffix in _LOG_ENDINGS
        return TextSource(path) if known is None and is_log else known


def _format_of(path: Path) -> Source | None:
    """Follow a file that holds metrics in a known format."""
    artifacts, _ = examine(path)
    for artifact in artifacts:
        if artifact.kind is ArtifactKind.METRICS:
            is_text = artifact.format.endswith(("_console", "_jsonl"))
            return TextSource(path) if is_text else WholeFile(artifact)
    return None
