"""Commits of the user's own code: which lie between two, and a copy of each."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from align.core.errors import RunError


def between(tree: Path, first: str, last: str) -> tuple[str, ...]:
    """Return the commits from ``first`` to ``last``, both included, the oldest first.

    Of merges only the first parent is followed.

    Raises:
        RunError: There is no such repository or commit, or ``last`` does not come after ``first``.
    """
    ends = [_git(tree, "rev-parse", "--verify", f"{name}^{{commit}}") for name in (first, last)]
    listed = _git(tree, "rev-list", "--reverse", "--first-parent", f"{ends[0]}..{ends[1]}").split()
    base = _git(tree, "merge-base", *ends)
    if base != ends[0] or not listed:
        raise RunError(
            where=str(tree),
            problem=f"{last} does not come after {first}",
            fix="give the commit of the reference first, and one of the same branch",
        )
    return (ends[0], *listed)


def copy_of(tree: Path, commit: str, folder: Path) -> Path:
    """Return a folder with the files of a commit; made once, whole or not at all.

    The user's working tree is not touched. Submodules and Git LFS files are not in it.
    """
    made = folder / commit[:12]
    if made.is_dir():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder, prefix=".part-"))
    try:
        with tempfile.TemporaryFile() as archive:
            subprocess.run(
                ["git", "-C", str(tree), "archive", "--format=tar", commit],
                stdout=archive,
                check=True,
            )
            archive.seek(0)
            with tarfile.open(fileobj=archive) as tar:
                tar.extractall(part)
        os.replace(part, made)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return made


def _git(tree: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(tree), *words], capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise RunError(where="git", problem="is not installed", fix="install it") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        raise RunError(
            where=str(tree),
            problem=f"git {words[0]} fails ({said[0] if said else error.returncode})",
            fix="name a git repository and two of its commits",
        ) from error
    return done.stdout.strip()
