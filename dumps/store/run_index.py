"""The index of a run folder: which files are finished, and which steps are whole.

Every writing process appends to a file of its own, ``index/NAME.jsonl``, as appending to one file
from several machines is not safe on network file systems. A line says that a file is finished
(``file``, ``sha256``, ``size_bytes``, ``step``), or that the process has nothing more to write for
a step (``step``, ``whole``). A line is appended after its file is in place, so a killed writer
loses at most the step in progress.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "index"
ADDED = "added"
"""Index of files that `align run add` enters."""

ASSEMBLED = "assembled"
"""Index of files made of a run's other files."""

ENGINE = "engine"
"""How the indexes of rollout engines begin, which write between the steps."""

CAPTURE_FOLDER = ".align-capture"
"""Folder below a run for what processes of a capture tell each other; no part of the record."""

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One finished file.

    Args:
        writer: name of the process, such as "actor-0".
        file: path below the run folder, with forward slashes.
        step: it belongs to; None for the whole run's.
    """

    writer: str
    file: str
    sha256: str
    size_bytes: int
    step: int | None


@dataclass(frozen=True, slots=True)
class RunIndex:
    """All lines of a run's index.

    Args:
        files: the last line of each file, in order of path.
        whole: steps that each writer has finished.
        torn: lines that are no JSON, as "file:line"; the last of a killed writer.
    """

    files: tuple[IndexedFile, ...]
    whole: dict[str, frozenset[int]]
    torn: tuple[str, ...]

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """Steps that every writer has finished."""
        steps = list(self.whole.values())
        return tuple(sorted(frozenset.intersection(*steps))) if steps else ()

    @property
    def broken_steps(self) -> tuple[int, ...]:
        """Steps that some writer has begun or finished, and some other has not finished."""
        begun = {file.step for file in self.files if file.step is not None}
        return tuple(sorted((begun | set().union(*self.whole.values())) - set(self.whole_steps)))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            sha.update(chunk)
    return sha.hexdigest()


def append_file(run: Path, writer: str, path: Path, step: int | None) -> None:
    """Enter a finished file."""
    line = {
        "file": path.relative_to(run).as_posix(),
        "sha256": digest(path),
        "size_bytes": path.stat().st_size,
        "step": step,
    }
    _append(run, writer, line)


def append_whole(run: Path, writer: str, step: int) -> None:
    """Enter that a writer has finished a step."""
    _append(run, writer, {"step": step, "whole": True})


def read_index(run: Path) -> RunIndex:
    """Read every writer's index; empty where the folder has none."""
    files: dict[str, IndexedFile] = {}
    whole: dict[str, frozenset[int]] = {}
    torn: list[str] = []
    for path in sorted((run / FOLDER).glob("*.jsonl")):
        steps = set()
        for number, text in enumerate(path.read_bytes().split(b"\n"), 1):
            line = _parse(text)
            if line is None:
                torn += [f"{FOLDER}/{path.name}:{number}"] if text.strip() else []
            elif "file" in line:
                entry = IndexedFile(path.stem, **line)
                files[entry.file] = entry
            else:
                steps.add(line["step"])
        if not path.stem.startswith((ADDED, ASSEMBLED, ENGINE)):  # these finish no steps
            whole[path.stem] = frozenset(steps)
    return RunIndex(tuple(files[name] for name in sorted(files)), whole, tuple(torn))


def drop_steps(run: Path, steps: Iterable[int]) -> list[str]:
    """Remove the files of some steps and their lines; return the files, below the run folder."""
    gone, removed = frozenset(steps), []
    for path in sorted((run / FOLDER).glob("*.jsonl")):
        kept = []
        for text in path.read_bytes().split(b"\n"):
            line = _parse(text)
            if line is None or line.get("step") not in gone:
                kept.append(text)
            elif "file" in line:
                (run / line["file"]).unlink(missing_ok=True)
                removed.append(str(line["file"]))
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(b"\n".join(kept))
        os.replace(part, path)
    return sorted(set(removed))


def _append(run: Path, writer: str, line: dict[str, object]) -> None:
    path = run / FOLDER / f"{writer}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        # A killed writer may have left half a line: start on a fresh one.
        torn = file.tell() > 0 and path.read_bytes()[-1:] != b"\n"
        file.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict):
        return None
    named = {"file", "sha256", "size_bytes", "step"} == line.keys()
    return line if named or {"step", "whole"} == line.keys() else None
