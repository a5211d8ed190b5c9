"""A thread that writes files while training goes on.

Whole files only: written under a hidden name, renamed, then entered into the index. The queue is
bounded; when it stays full, the step is dropped and the log says so, as waiting for a slow disk
would slow training down.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dumps.capture.failures import FailureLog
from dumps.store.run_index import append_file, append_whole

QUEUED_STEPS = 4
PUT_TIMEOUT_S = 10.0
DRAIN_TIMEOUT_S = 60.0

WriteFile = Callable[[Path], object]
"""Writes the content to the path it is given."""

MakeFiles = Callable[[], Mapping[str, WriteFile]]
"""Gives a step's files by their path below the run folder; called by the writing thread."""


class Writer:
    """Writes one process's files.

    Args:
        run: the run folder.
        name: of the process, and of its index.
        log: where failures go.
    """

    def __init__(self, run: Path, name: str, log: FailureLog) -> None:
        self._run, self.name, self._log = run, name, log
        self._jobs: queue.Queue[tuple[int | None, MakeFiles]] = queue.Queue(QUEUED_STEPS)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self.num_seconds = 0.0

    def submit(self, step: int | None, make_files: MakeFiles) -> None:
        """Have a step's files made and written.

        Args:
            step: that is whole with these files; None for files of the whole run.
        """
        if self._thread is None or not self._thread.is_alive():
            self._start()
        try:
            self._jobs.put((step, make_files), timeout=PUT_TIMEOUT_S)
        except queue.Full:
            self._log.write(f"dropped: step {step}: the disk is too slow for {self._run}")

    def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Wait until all is written, at most this long; in a forked child nothing is."""
        if os.getpid() != self._pid:
            return
        end = time.monotonic() + timeout_s
        while self._jobs.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)
        if self._jobs.unfinished_tasks:
            self._log.write(f"unfinished: {self._jobs.unfinished_tasks} steps are not written yet")

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="align-capture", daemon=True)
        self._thread.start()
        atexit.register(self.drain)

    def _work(self) -> None:
        while True:
            step, make_files = self._jobs.get()
            begin = time.thread_time()
            with self._log.kept(f"writing step {step}"):
                for name, write in make_files().items():
                    append_file(self._run, self.name, write_whole(self._run / name, write), step)
                if step is not None:
                    append_whole(self._run, self.name, step)
            self.num_seconds += time.thread_time() - begin
            self._jobs.task_done()


def write_whole(path: Path, write: WriteFile) -> Path:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.touch()
        mode = part.stat().st_mode  # what the user's umask gives; safetensors gives its own
        write(part)
        part.chmod(mode)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path
