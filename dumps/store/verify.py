"""Check a run folder against its index: what is whole, what changed, what was left behind."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from align.core.errors import RunError
from dumps.store.run_index import ADDED, RunIndex, append_file, digest, drop_steps, read_index


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check found.

    Args:
        num_files: in the index.
        missing: entered and not there.
        changed: there with another content than was entered.
        unfinished: left by a writer that was killed while it wrote.
        torn: lines of the index that are cut off.
        whole_steps: that every writer has finished and whose files are as entered.
        broken_steps: begun and not whole.
    """

    num_files: int
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    unfinished: tuple[str, ...]
    torn: tuple[str, ...]
    whole_steps: tuple[int, ...]
    broken_steps: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every file and step is as it was entered."""
        return not (self.missing or self.changed or self.broken_steps)


def verify(run: Path) -> Verified:
    """Compare every file of the index with its checksum.

    Raises:
        RunError: The folder has no index.
    """
    index = _index(run)
    missing: list[str] = []
    changed: list[str] = []
    damaged: set[int] = set()
    for entry in index.files:
        path = run / entry.file
        if not path.is_file():
            missing.append(entry.file)
        elif path.stat().st_size != entry.size_bytes or digest(path) != entry.sha256:
            changed.append(entry.file)
        else:
            continue
        if entry.step is not None:
            damaged.add(entry.step)
    parts = run.rglob(".*.part")
    return Verified(
        num_files=len(index.files),
        missing=tuple(missing),
        changed=tuple(changed),
        unfinished=tuple(sorted(path.relative_to(run).as_posix() for path in parts)),
        torn=index.torn,
        whole_steps=tuple(step for step in index.whole_steps if step not in damaged),
        broken_steps=tuple(sorted({*index.broken_steps, *damaged})),
    )


def prune(run: Path, steps: Sequence[tuple[int, int]]) -> list[str]:
    """Remove the files of steps within inclusive ranges; return what was removed.

    Raises:
        RunError: The folder has no index.
    """
    index = _index(run)
    known = {*index.whole_steps, *index.broken_steps}
    return drop_steps(run, [s for s in known if any(low <= s <= high for low, high in steps)])


def add(run: Path, paths: Sequence[Path], step: int | None) -> list[str]:
    """Copy files into a run folder and enter them; return their paths below it.

    Raises:
        RunError: A file does not exist, or one of that name is there.
    """
    pairs = [(path, run / ADDED / path.name) for path in paths]
    for source, target in pairs:
        if not source.is_file():
            raise RunError(where=str(source), problem="is no file", fix="give files, one by one")
        if target.exists():
            raise RunError(
                where=str(target), problem="exists", fix="rename the file, or remove that one"
            )
    for source, target in pairs:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        append_file(run, ADDED, target, step)
    return [target.relative_to(run).as_posix() for _, target in pairs]


def _index(run: Path) -> RunIndex:
    index = read_index(run)
    if not index.files and not index.torn:
        raise RunError(
            where=str(run),
            problem="has no index of finished files",
            fix="give a folder that `align capture` wrote, or add files with `align run add`",
        )
    return index
