"""What the taps of one process share: the plan, the log, the writers, and the time it all takes."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dumps.capture.failures import FailureLog
from dumps.capture.plan import CapturePlan, What, plan_of_environment
from dumps.capture.wrap import After, Tap
from dumps.capture.writer import Writer

TIMINGS = "capture_timings"


class Session:
    """One process under capture.

    Args:
        plan: of the run.
    """

    def __init__(self, plan: CapturePlan) -> None:
        self.plan = plan
        self.log = FailureLog(plan.run, f"process {os.getpid()}")
        self.seconds = 0.0  # spent in taps since the last step
        self.sketch_seconds = 0.0  # of those, spent in sketching weights
        self._noted: tuple[str, int] | None = None
        self._writers: dict[str, Writer] = {}

    def takes(self, *kinds: What) -> bool:
        """Tell whether any of these kinds is recorded."""
        return any(map(self.plan.takes, kinds))

    def writer(self, name: str) -> Writer:
        """Return the writer of a part of this process, such as "driver-0"."""
        if name not in self._writers:
            self.log.process = name
            self._writers[name] = Writer(self.plan.run, name, self.log)
        return self._writers[name]

    def drain(self) -> None:
        """Wait for what is being written."""
        for writer in self._writers.values():
            writer.drain()

    def note_time(self, name: str, step: int) -> None:
        """Have the time of a step's taps written down when the tap that calls this is through.

        Args:
            step: 0 for what is done before the first.
        """
        self._noted = (name, step)

    @contextmanager
    def sketching(self, what: str) -> Iterator[None]:
        """Count the time of a block apart, and keep its failures out of training."""
        begin = time.perf_counter()
        try:
            with self.log.kept(f"sketch of {what}"):
                yield
        finally:
            self.sketch_seconds += time.perf_counter() - begin

    def count(self, elapsed_s: float) -> None:
        """Count the time of a tap that is through."""
        self.seconds += elapsed_s
        if self._noted is not None:
            name, step = self._noted
            line = {
                "step": step,
                "tap_s": round(self.seconds - self.sketch_seconds, 6),
                "sketch_s": round(self.sketch_seconds, 6),
                "writer_s": round(self.writer(name).num_seconds, 6),
            }
            self._noted, self.seconds, self.sketch_seconds = None, 0.0, 0.0
            append_line(self.plan.run / TIMINGS / f"{name}.jsonl", line)


def timed(session: Session, tap: Tap) -> Tap:
    """Count the time a tap takes, before and after the function it looks at."""

    @functools.wraps(tap)
    def called(*args: Any, **kwargs: Any) -> After | None:
        begin = time.perf_counter()
        try:
            after = tap(session, *args, **kwargs)
        finally:
            session.count(time.perf_counter() - begin)
        return None if after is None else _timed_after(session, after)

    return called


def _timed_after(session: Session, after: Callable[[Any], Any]) -> After:
    def called(result: Any) -> Any:
        begin = time.perf_counter()
        try:
            return after(result)
        finally:
            session.count(time.perf_counter() - begin)

    return called


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append a JSON document to a file that grows through the run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@functools.cache
def current() -> Session | None:
    """Return this process's session, None where the environment asks for no capture."""
    plan = plan_of_environment()
    return None if plan is None else Session(plan)
