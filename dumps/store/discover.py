"""Find out by content what a folder, a file or several files hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from align.core.errors import RunError
from align.core.run import Artifact, Run, RunManifest, UnknownFile
from dumps.readers.reader import Glimpse
from dumps.readers.registry import readers
from dumps.readers.text import identify, remedy_for
from dumps.store.manifest import FILE_NAME, read_manifest
from dumps.store.run_index import CAPTURE_FOLDER

MAX_FILES = 20_000
# Checkpoints and caches hold thousands of files that say nothing about a comparison.
SKIPPED_FOLDERS = frozenset(
    {".git", "__pycache__", "node_modules", ".venv", ".align-replay", CAPTURE_FOLDER}
)


def discover(
    paths: Sequence[Path], *, label: str | None = None, skips_broken_manifest: bool = False
) -> Run:
    """Make a run of a folder, a file, or any mixture of both.

    Args:
        paths: at least one existing path; folders are walked, symbolic links to folders are not
            followed. A manifest is taken from the first folder that has one.
        label: how reports name the run; the first path by default.
        skips_broken_manifest: go on without a manifest that cannot be read, as one that is to be
            replaced.

    Raises:
        RunError: A path does not exist, is no file or folder, or holds too many files; or the
            manifest cannot be read and is not skipped.
    """
    for path in paths:
        _check_readable(path)
    artifacts: list[Artifact] = []
    unknown: list[UnknownFile] = []
    files = _files(paths, unknown)
    for file in sorted({os.path.realpath(file): file for file in files}.values()):
        found, stranger = examine(file)
        artifacts += found
        unknown += [stranger] if stranger else []
    return Run(
        label=label or str(paths[0]),
        root=paths[0] if paths[0].is_dir() else paths[0].parent,
        artifacts=tuple(artifacts),
        unknown=tuple(unknown),
        manifest=_manifest(paths, skips_broken_manifest),
    )


def examine(path: Path) -> tuple[tuple[Artifact, ...], UnknownFile | None]:
    """Ask every reader what one file holds: its roles, or why it has none."""
    try:
        glimpse = Glimpse(path, path.stat().st_size)
        if glimpse.size_bytes == 0:
            return (), UnknownFile(path, "empty file", remedy_for("empty file"))
        taken: dict[str, Artifact] = {}
        for reader in readers():
            if reader.kind not in taken and reader.sniff(glimpse):
                taken[reader.kind] = Artifact(reader.kind, reader.format, path, glimpse.size_bytes)
                if reader.sole_role:
                    break
        if taken:
            return tuple(taken.values()), None
        name = _looks_like(glimpse)
        return (), UnknownFile(path, name, remedy_for(name))
    except OSError as error:
        return (), UnknownFile(path, f"cannot be opened ({error.strerror})")


def _check_readable(path: Path) -> None:
    if not os.path.exists(path):
        raise RunError(
            where=str(path), problem="does not exist", fix="give a run folder or a log file"
        )
    if not (os.path.isdir(path) or os.path.isfile(path)):
        raise RunError(
            where=str(path),
            problem="is a pipe or device, and files are read more than once",
            fix="write it to a file first",
        )


def _manifest(paths: Sequence[Path], skips_broken: bool) -> RunManifest:
    folder = next((p for p in paths if p.is_dir() and (p / FILE_NAME).is_file()), None)
    try:
        return RunManifest() if folder is None else read_manifest(folder)
    except RunError:
        if not skips_broken:
            raise
        return RunManifest()


def _files(paths: Sequence[Path], unlisted: list[UnknownFile]) -> Iterator[Path]:
    """Yield every file; folders that cannot be listed go into ``unlisted``."""
    count = 0
    for path in paths:
        for file in _walk(path, unlisted) if path.is_dir() else (path,):
            count += 1
            if count > MAX_FILES:
                raise RunError(
                    where=str(path),
                    problem=f"holds more than {MAX_FILES} files",
                    fix="give the run's own folder, or single files",
                )
            yield file


def _walk(folder: Path, unlisted: list[UnknownFile]) -> Iterator[Path]:
    def keep(error: OSError) -> None:
        unlisted.append(UnknownFile(Path(error.filename), f"cannot be listed ({error.strerror})"))

    for parent, folders, names in os.walk(folder, onerror=keep):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(names):
            file = Path(parent, name)
            if name != FILE_NAME and os.path.isfile(file):
                yield file


def _looks_like(glimpse: Glimpse) -> str:
    """Name a file no reader knows."""
    if (name := identify(glimpse.head)) is not None:
        return name
    with glimpse.path.open("rb") as file:
        file.seek(max(0, glimpse.size_bytes - 4))
        end = file.read()
    if end[-1] >= 0x80 and not _ends_whole(end):
        return "text that ends in the middle of a UTF-8 character"
    return "text of no known format"


def _ends_whole(end: bytes) -> bool:
    """Whether the last bytes of a text are a complete UTF-8 character."""
    for start in range(len(end)):
        try:
            end[start:].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return True
    return False
