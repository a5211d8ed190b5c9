"""Write the report's three files, each whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from align.core.errors import AlignError
from reports.render import html, json, markdown


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the three files of one report are."""

    html: Path
    markdown: Path
    json: Path


def write_report(document: Mapping[str, Any], folder: Path, lang: str) -> Paths:
    """Draw a report document and write report.html, report.md and report.json.

    All three are drawn before the first is written, so an error or Ctrl-C leaves earlier files as
    they were.

    Args:
        document: the JSON document of a report.
        folder: made if it does not exist; files of an earlier report are replaced.
        lang: "en" or "zh".

    Raises:
        AlignError: The folder cannot be written to.
        DocumentError: The document is not a report.
    """
    paths = Paths(folder / "report.html", folder / "report.md", folder / "report.json")
    texts = {
        paths.html: html.render(document, lang),
        paths.markdown: markdown.render(document, lang),
        paths.json: json.render(document),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            _write_whole(path, text)
    except OSError as error:
        raise AlignError(
            where=str(error.filename or folder),
            problem=f"the report cannot be written ({error.strerror or error})",
            fix="choose another folder with -o",
        ) from error
    return paths


def _write_whole(path: Path, text: str) -> None:
    """Write beside ``path`` and move there: a reader sees the old file or the new one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
