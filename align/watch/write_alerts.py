"""What an alarm sets off: a command, a webhook, a signal. A failure is reported, never fatal."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import URLError

from align.core.errors import RunError

_COMMAND_TIMEOUT_S = 60
_WEBHOOK_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Actions:
    """What the user asked for; nothing of it happens by itself.

    Args:
        command: is given the JSON document on its standard input.
        webhook: address the document is posted to.
        stop_pid: process that is asked to end (SIGTERM).
    """

    command: str | None = None
    webhook: str | None = None
    stop_pid: int | None = None


def check(actions: Actions) -> None:
    """Refuse what could not work at the time of an alarm.

    Raises:
        RunError: An address of another protocol, a command that cannot be split, or a process
            that does not exist or is not ours to end.
    """
    if actions.webhook and not actions.webhook.startswith(("http://", "https://")):
        raise RunError(where="--webhook", problem="is no http address", fix="give https://…")
    if actions.command is not None:
        try:
            words = shlex.split(actions.command)
        except ValueError as error:
            raise RunError(where="--command", problem=str(error), fix="close the quote") from error
        if not words:
            raise RunError(where="--command", problem="is empty", fix="give a program")
    if actions.stop_pid is not None:
        _check_pid(actions.stop_pid)


def set_off(actions: Actions, document: Mapping[str, Any]) -> Iterator[str]:
    """Do everything that was asked for; yield what did not work, and what was stopped."""
    text = json.dumps(document, ensure_ascii=False)
    if actions.stop_pid is not None:
        yield _stop(actions.stop_pid)
    if actions.command is not None:
        yield from _run(actions.command, text)
    if actions.webhook is not None:
        yield from _post(actions.webhook, text)


def _check_pid(pid: int) -> None:
    if pid <= 1 or pid == os.getpid():
        raise RunError(
            where="--stop-pid", problem=f"{pid} is not a training job", fix="give its process id"
        )
    try:
        os.kill(pid, 0)
    except ProcessLookupError as error:
        raise RunError(
            where="--stop-pid", problem=f"there is no process {pid}", fix="give a running job's id"
        ) from error
    except PermissionError as error:
        raise RunError(
            where="--stop-pid", problem=f"process {pid} is another user's", fix="ask its owner"
        ) from error


def _stop(pid: int) -> str:
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        return f"process {pid} could not be stopped ({error.strerror})"
    return f"process {pid} was asked to end (SIGTERM)"


def _run(command: str, text: str) -> Iterator[str]:
    try:
        done = subprocess.run(
            shlex.split(command),
            input=text,
            text=True,
            capture_output=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"--command: {error}"
        return
    if done.returncode:
        yield f"--command: exit code {done.returncode}: {done.stderr.strip()[-200:]}"


def _post(url: str, text: str) -> Iterator[str]:
    request = urllib.request.Request(
        url,
        data=text.encode("utf-8"),
        headers={"Content-Type": "application/json; charset=utf-8"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=_WEBHOOK_TIMEOUT_S):
            pass
    except (URLError, OSError, ValueError) as error:
        yield f"--webhook: {error}"
