"""What part of a captured step a file is, without reading its tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from align.core.errors import DumpError
from align.core.optional import require


@dataclass(frozen=True, slots=True)
class CapturedRole:
    """One rank's part of a step.

    Args:
        role: of the process, such as "actor", or "preference" of one that trains on pairs.
    """

    path: Path
    step: int
    rank: int
    role: str


def read_role(path: Path) -> CapturedRole:
    """Read the notes of a file of `dumps.readers.captured_step` alone.

    Raises:
        DumpError: The file is damaged.
        MissingPackageError: safetensors is not installed.
    """
    safetensors = require("safetensors", extra="torch")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            notes = json.loads(file.get_tensor("notes").tobytes())
        return CapturedRole(path, int(notes["step"]), int(notes["rank"]), str(notes["role"]))
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DumpError(
            where=str(path),
            problem=f"has no notes of a captured step ({error})",
            fix="capture the step again, or leave the file out",
        ) from error
