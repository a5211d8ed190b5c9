"""A capture's own failures: written down, never raised into training."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG_NAME = "capture.log"
MOST_OF_A_KIND = 3


class RunStopped(RuntimeError):
    """A broken invariant ends the run: the one exception a capture raises into training."""


class FailureLog:
    """Appends to ``RUN/capture.log``; of one place only the first few failures.

    Args:
        run: the run folder.
        process: how lines name this process.
    """

    def __init__(self, run: Path, process: str) -> None:
        self._run, self.process = run, process
        self._seen: dict[str, int] = {}

    def write(self, message: str) -> None:
        """Append a line; where even that fails, say so on stderr."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        line = f"{stamp} {self.process} pid {os.getpid()}: {message.rstrip()}\n"
        try:
            self._run.mkdir(parents=True, exist_ok=True)
            with (self._run / LOG_NAME).open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            print(f"align capture: {message} (and no log: {error})", file=sys.stderr)

    @contextmanager
    def kept(self, place: str) -> Iterator[None]:
        """Keep an exception of the block out of training; `RunStopped` passes."""
        try:
            yield
        except RunStopped as stopped:
            self.write(f"stopped: {stopped}")
            raise
        except Exception:
            count = self._seen[place] = self._seen.get(place, 0) + 1
            if count <= MOST_OF_A_KIND:
                self.write(f"failed: {place}: {traceback.format_exc()}")
