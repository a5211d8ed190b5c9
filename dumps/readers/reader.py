"""What a reader is, and the glimpse of a file it decides by.

A reader is one file in this folder with module-level constants named ``READER`` or ``READERS``
(a tuple). It decides by content, never by name alone, and it never raises on a file it does not
know: ``sniff`` returns False. ``read`` raises `DumpError` or `ConfigError` only when nothing at
all can be read; what is readable is returned with the count of what was skipped.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from align.core.run import ArtifactKind

HEAD_BYTES = 65536

Progress = Callable[[int], None]
"""Called with the number of further bytes read; draws nothing itself."""


def no_progress(num_bytes: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Glimpse:
    """A file as discovery sees it: size, first 64 KiB, and a search through all of it."""

    path: Path
    size_bytes: int

    @cached_property
    def head(self) -> bytes:
        """First 64 KiB."""
        with self.path.open("rb") as file:
            return file.read(HEAD_BYTES)

    def search(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Find ``pattern`` anywhere in the file, without loading it."""
        found = pattern.search(self.head)
        if found is not None or self.size_bytes <= HEAD_BYTES:
            return found
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            match = pattern.search(data)
            # The match must not outlive the map: match again on the bytes it covers.
            return None if match is None else re.compile(b"(?s).*").match(match.group())


@dataclass(frozen=True, slots=True)
class Reader:
    """One format in one role.

    Args:
        format: stable name, such as "verl_console".
        kind: what the file is read for.
        sniff: whether the file is of this format.
        read: ``read(path, progress)`` for metrics -> `MetricLog`, config -> `RawConfig`,
            rollout and validation -> iterator of `RolloutBatch`, environment ->
            `EnvironmentFacts`.
        sole_role: a file of this format serves no other kind, so no other reader is asked.
        priority: readers of one kind are asked in descending order; the first that knows the file
            reads it. Equal priorities are asked in order of format name.
    """

    format: str
    kind: ArtifactKind
    sniff: Callable[[Glimpse], bool]
    read: Callable[[Path, Progress], Any]
    priority: int = 0
    sole_role: bool = False
