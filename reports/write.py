"""Write the report's three files, each whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from align.core.errors import AlignError
from dumps.store.atomic import write_atomic
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
        for path, text in texts.items():
            write_atomic(path, text)
    except OSError as error:
        raise AlignError(
            where=str(error.filename or folder),
            problem=f"the report cannot be written ({error.strerror or error})",
            fix="choose another folder with -o",
        ) from error
    return paths
