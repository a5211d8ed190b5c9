"""Run a command in a folder so that it is never run twice, whatever becomes of its parent.

The wrapper shell holds a lock on the folder as long as it lives and writes the exit code at the
end. If this program is killed the command goes on; the next one waits for it and takes its result.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import IO

from align.core.errors import RunError
from dumps.store.atomic import write_atomic

_WRAPPER = (
    '"$0" "$1/command.sh" </dev/null >"$1/output.log" 2>&1; '
    'echo $? >"$1/exit_code.part"; mv "$1/exit_code.part" "$1/exit_code"'
)
_POLL_S = 0.1
_PATIENCE_S = 10.0  # between asking a command to end and ending it


class Stopped(Exception):
    """The command was ended because the bisection is."""


def exit_code_of(folder: Path) -> int | None:
    """Return the exit code of a finished command, None where there is none."""
    try:
        return int((folder / "exit_code").read_text())
    except (OSError, ValueError):
        return None


def elapsed_s(folder: Path) -> float:
    """Return how long a finished command ran."""
    ended = (folder / "exit_code").stat().st_mtime
    return max(0.0, ended - (folder / "command.sh").stat().st_mtime)


def run_once(
    folder: Path, command: str, environment: Mapping[str, str], cwd: Path, stop: Event
) -> int:
    """Return the command's exit code; run it only if it has not been run to its end.

    Raises:
        Stopped: ``stop`` was set before the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        while not _locked(lock):  # a command that outlived the bisection that started it
            if stop.wait(_POLL_S):
                raise Stopped
        done = exit_code_of(folder)
        if done is not None:
            return done
        shutil.rmtree(folder / "run", ignore_errors=True)
        (folder / "run").mkdir()
        write_atomic(folder / "command.sh", f"{command}\n")
        shell = shutil.which("bash") or "/bin/sh"
        process = subprocess.Popen(
            [shell, "-c", _WRAPPER, shell, str(folder)],
            stdin=lock,  # the wrapper's share of the lock; the command's own stdin is empty
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
        )
        return _wait(process, folder, stop)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    Raises:
        RunError: Another bisection works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        if not _locked(lock):
            raise RunError(
                where=str(folder),
                problem="another bisection works here",
                fix="wait for it, or choose another -o",
            )
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise RunError(
            where=str(file.name),
            problem=f"cannot be locked ({error.strerror})",
            fix="choose -o on a file system with locks, such as a local disk",
        ) from error
    return True


def _wait(process: subprocess.Popen[bytes], folder: Path, stop: Event) -> int:
    while True:
        try:
            process.wait(_POLL_S)
            break
        except subprocess.TimeoutExpired:
            if stop.is_set():
                _end(process)
                raise Stopped from None
    code = exit_code_of(folder)
    if code is None:  # the wrapper itself was killed
        code = 128 + abs(process.returncode)
        write_atomic(folder / "exit_code", f"{code}\n")
    return code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the wrapper and the command, which are a process group of their own."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
