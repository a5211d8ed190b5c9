"""Run folders behind a URL: mirrored into a folder of this machine, so that readers stay on paths.

Any URL that fsspec knows. Files are copied when their size, or what the store says of their
version, is another than at the last time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from align.core.errors import RunError
from align.core.optional import require
from dumps.store.atomic import write_atomic

MAX_FILES = 20_000
# How stores name the version of a file: S3, Azure, Google, memory, SFTP.
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "created")
_STAMPS = "stamps.json"


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A run folder's copy.

    Args:
        path: of the folder, or of the file where the URL is one's.
        num_copied: files that were copied this time.
        copied_bytes: their size.
    """

    path: Path
    num_copied: int = 0
    copied_bytes: int = 0


def is_url(where: str) -> bool:
    """Tell whether a place is a URL and no path."""
    return "://" in where


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where copies are kept: below XDG_CACHE_HOME, else below ~/.cache."""
    given = environment.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "npu-align" / "runs"


def mirror(url: str, cache: Path) -> Mirrored:
    """Bring the copy of a run folder up to date; a local URL is only turned into its path.

    Args:
        cache: folder that holds the copies, one a URL.

    Raises:
        MissingPackageError: fsspec is not installed.
        RunError: The URL cannot be opened, holds nothing or too much, or names files outside.
    """
    store, root = _opened(url)
    if "file" in _protocols(store):
        return Mirrored(Path(root))
    try:
        listed: dict[str, Mapping[str, Any]] = store.find(root, detail=True)
    except OSError as error:
        raise RunError(where=url, problem=f"cannot be listed ({error})", fix=_ACCESS) from error
    if not listed:
        raise RunError(where=url, problem="holds no files", fix="give the URL of a run folder")
    if len(listed) > MAX_FILES:
        raise RunError(
            where=url, problem=f"holds more than {MAX_FILES} files", fix="give the run's own folder"
        )
    home = cache / hashlib.sha256(url.encode()).hexdigest()[:16]
    folder = home / (PurePosixPath(root).name or "run")
    targets = {name: _target(url, folder, name, root) for name in listed}
    stamps = {str(targets[name].relative_to(home)): _stamp(f) for name, f in listed.items()}
    known = _known(home / _STAMPS)
    num_copied = copied_bytes = 0
    for name, target in targets.items():
        key = str(target.relative_to(home))
        if known.get(key) == stamps[key] and target.is_file():
            continue
        _copy(store, url, name, target)
        num_copied, copied_bytes = num_copied + 1, copied_bytes + target.stat().st_size
    for gone in _files(folder) - set(targets.values()):
        gone.unlink()
    write_atomic(home / _STAMPS, json.dumps(stamps, indent=0, sort_keys=True))
    return Mirrored(folder, num_copied, copied_bytes)


_ACCESS = "check the URL and the access to it"


def _opened(url: str) -> tuple[Any, str]:
    """Return the file system and the folder in it."""
    fsspec = require("fsspec.core", extra="remote")
    try:
        store, root = fsspec.url_to_fs(url)
    except ImportError as error:  # fsspec knows the protocol, and its package is not there
        raise RunError(
            where=url, problem=f"needs another package ({error})", fix="install that package"
        ) from error
    except (OSError, ValueError) as error:
        raise RunError(where=url, problem=f"cannot be opened ({error})", fix=_ACCESS) from error
    return store, str(root).rstrip("/")


def _protocols(store: Any) -> tuple[str, ...]:
    return (store.protocol,) if isinstance(store.protocol, str) else tuple(store.protocol)


def _target(url: str, folder: Path, name: str, root: str) -> Path:
    """Return the place of a file in the copy, which must not lie outside of it."""
    below = PurePosixPath(name.removeprefix(root).lstrip("/"))
    target = folder / below if below.parts else folder
    inside = target.resolve().is_relative_to(folder.resolve())
    if ".." in below.parts or "\\" in name or not inside:
        raise RunError(
            where=url,
            key=name,
            problem="would be written outside the copy of this run",
            fix="rename the file, and distrust whoever put it there",
        )
    return target


def _stamp(facts: Mapping[str, Any]) -> list[str]:
    """Return size and version of a file as text."""
    return [str(facts.get(name)) for name in ("size", *_VERSIONS)]


def _known(path: Path) -> Mapping[str, list[str]]:
    """Return the stamps of the last time; none where they cannot be read, so all is copied."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _copy(store: Any, url: str, name: str, target: Path) -> None:
    """Copy one file so that it is there whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.mirrored")
    try:
        store.get_file(name, str(part))
        os.replace(part, target)
    except (OSError, ValueError) as error:
        raise RunError(
            where=url, key=name, problem=f"cannot be copied ({error})", fix=_ACCESS
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _files(folder: Path) -> set[Path]:
    return set(_walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)
