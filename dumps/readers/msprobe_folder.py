"""Where the dumps of a msprobe folder lie: ``…/step{n}/{rank{r} | proc{pid}}/dump.json``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dumps.readers.msprobe import READER, TENSORS
from dumps.readers.reader import Glimpse

_PROCESS = re.compile(r"(rank|proc)_?(\d+)")
_STEP = re.compile(r"step_?(\d+)")
_DIGITS = re.compile(r"(\d+)")
_MAX_DEPTH = 6


@dataclass(frozen=True, slots=True)
class DumpPlace:
    """One ``dump.json``.

    Args:
        stage: folders above the process's, such as "step0" or "step_1/actor_update/step0".
        rank: None for a process that belonged to no group.
    """

    path: Path
    stage: str
    rank: int | None

    @property
    def step(self) -> int | None:
        """The number of the outermost step folder; msprobe counts its own from 0."""
        found = (_STEP.fullmatch(part) for part in self.stage.split("/"))
        return next((int(step[1]) for step in found if step), None)


def dump_places(root: Path) -> tuple[DumpPlace, ...]:
    """Find the dumps of a folder, or the one that ``root`` itself is; by stage, then rank."""
    files = [root] if root.is_file() else list(_dump_files(root))
    found = [_place(file, root) for file in files if _is_dump(file)]
    return tuple(sorted(found, key=lambda place: (_natural(place.stage), place.rank or 0)))


def _dump_files(root: Path) -> Iterator[Path]:
    depth = len(root.parts)
    for parent, folders, names in os.walk(root):
        deep = len(Path(parent).parts) - depth >= _MAX_DEPTH
        folders[:] = [] if deep else sorted(name for name in folders if name != TENSORS)
        if "dump.json" in names:
            yield Path(parent, "dump.json")


def _is_dump(file: Path) -> bool:
    try:
        return READER.sniff(Glimpse(file, file.stat().st_size))
    except OSError:
        return False


def _place(file: Path, root: Path) -> DumpPlace:
    folder = file.parent
    process = _PROCESS.fullmatch(folder.name)
    above = folder.parent if process else folder
    inside = above.relative_to(root).as_posix() if above.is_relative_to(root) else "."
    if inside == ".":
        inside = above.name if _STEP.fullmatch(above.name) else ""
    rank = int(process[2]) if process and process[1] == "rank" else None
    return DumpPlace(file, inside, rank)


def _natural(text: str) -> list[str | int]:
    """Return a sort key by which step10 follows step9."""
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(text)]
