"""The result of ``align run verify`` as text or as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.cli.capture_view import steps_as_text

if TYPE_CHECKING:
    from dumps.store.verify import Verified

SCHEMA_VERSION = 1
_LABELS = {
    "missing": "missing",
    "changed": "not what was written",
    "unfinished": "left by a killed writer",
    "torn": "cut off",
}


def as_document(folder: Path, verified: Verified) -> dict[str, Any]:
    """Return the versioned document of ``--json``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": str(folder),
        "is_whole": verified.is_whole,
        **{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(verified).items()},
    }


def as_text(folder: Path, verified: Verified) -> str:
    """Say which steps are whole, and name each file that is not."""
    lines = [
        f"{folder}: {verified.num_files} files",
        f"  whole steps: {steps_as_text(verified.whole_steps)}",
        f"  broken steps: {steps_as_text(verified.broken_steps)}",
    ]
    for name, label in _LABELS.items():
        lines += [f"  {label}: {file}" for file in getattr(verified, name)]
    return "\n".join(lines)
