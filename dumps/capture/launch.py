"""Run the user's command under capture, and say afterwards what was recorded and what failed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from align.core.errors import RunError
from dumps.capture.environment import child_environment
from dumps.capture.failures import LOG_NAME, FailureLog
from dumps.capture.plan import CapturePlan, write_plan
from dumps.store.assemble_updates import assemble_updates
from dumps.store.run_index import read_index
from dumps.store.tensor_shards import FOLDER


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a captured command ended.

    Args:
        exit_code: of the command; 128 + signal where one ended it.
        whole_steps: recorded by every process that recorded anything.
        broken_steps: recorded in part.
        num_files: entered into the index.
        tensor_bytes: of the files of tensors kept whole.
        failures: first lines of what the capture itself could not do.
        stopped: why ``--stop-on error`` ended the run; None where it did not.
    """

    exit_code: int
    whole_steps: tuple[int, ...]
    broken_steps: tuple[int, ...]
    num_files: int
    tensor_bytes: int
    failures: tuple[str, ...]
    stopped: str | None


def run_captured(
    plan: CapturePlan,
    command: Sequence[str],
    adjust: Callable[[dict[str, str]], dict[str, str]] = dict,
) -> Outcome:
    """Run a command with its environment set up for capture, and wait for it.

    Args:
        adjust: adds to the environment what else the command is to have.

    Raises:
        RunError: The folder holds another run, or there is no such command.
    """
    refuse_used_folder(plan.run)
    environment = adjust(child_environment(write_plan(plan), os.environ))
    try:
        child = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise RunError(
            where=command[0], problem=f"cannot be run ({error.strerror})", fix="check the command"
        ) from error
    previous = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        code = _wait(child)
    finally:
        signal.signal(signal.SIGTERM, previous)
    with FailureLog(plan.run, "align capture").kept("joining the updates of all ranks"):
        assemble_updates(plan.run)
    return outcome(plan.run, code if code >= 0 else 128 - code)


def refuse_used_folder(run: Path) -> None:
    """Raise where a folder already holds a capture: two runs in one folder are neither.

    Raises:
        RunError: It does.
    """
    if read_index(run).files:
        raise RunError(
            where=str(run), problem="already holds a captured run", fix="give a new folder to -o"
        )


def outcome(run: Path, exit_code: int) -> Outcome:
    """Read what a capture left behind."""
    index = read_index(run)
    log = run / LOG_NAME
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    said = [line.partition(": ")[2] for line in lines if " pid " in line]
    stopped = [line.removeprefix("stopped: ") for line in said if line.startswith("stopped: ")]
    return Outcome(
        exit_code=exit_code,
        whole_steps=index.whole_steps,
        broken_steps=index.broken_steps,
        num_files=len(index.files),
        tensor_bytes=sum(f.size_bytes for f in index.files if f.file.startswith(f"{FOLDER}/")),
        failures=tuple(line for line in said if not line.startswith("stopped: ")),
        stopped=stopped[0] if stopped else None,
    )


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the command; an interrupt reaches it too, so it may end in its own way."""
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue
