"""Tell a rollout engine, in processes of its own, which step its next weights begin.

Trainer and engine share a node while weights go from one to the other (verl sends them through a
socket in ``/tmp``), so a file of the run folder named after the node is seen by both at once.
"""

from __future__ import annotations

import platform
from pathlib import Path

from dumps.store.atomic import write_atomic
from dumps.store.run_index import CAPTURE_FOLDER


def announce_step(run: Path, step: int) -> None:
    """Say which step the weights that are about to be sent begin."""
    write_atomic(_file(run), f"{step}\n")


def announced_step(run: Path) -> int | None:
    """Return the step last said on this node, None where nothing was."""
    try:
        return int(_file(run).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _file(run: Path) -> Path:
    return run / CAPTURE_FOLDER / f"step-{platform.node()}"
