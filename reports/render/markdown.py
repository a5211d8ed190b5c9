"""Draw a report as Markdown that GitHub and GitLab show well: the same content, compact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2

from align.core.document import from_document
from align.core.text import Text
from reports import labels
from reports.cells import show, show_in, show_short, visible

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
MAX_ROWS = 30
_ACTIVE = re.compile(r"([\\`*\[\]~#]|(?<!\w)_|_(?!\w))|([<>&$|])")


def render(document: Mapping[str, Any], lang: str) -> str:
    """Return the report as GitHub-flavoured Markdown.

    Args:
        document: parsed report.json; nothing else is looked at.
        lang: "en" or "zh".

    Raises:
        DocumentError: The document is not a report, or of another schema version.
    """
    report = from_document(document, where="report document")
    return _environment(lang).get_template("report.md.jinja").render(report=report)


def escape(text: str) -> str:
    """Return ``text`` so that Markdown shows every character of it, on one line."""
    return _ACTIVE.sub(
        lambda found: f"\\{found[1]}" if found[1] else f"&#{ord(found[2])};", _one_line(text)
    )


def code(text: str) -> str:
    """Return a code span that shows ``text`` as it is, whatever backticks and pipes it holds."""
    text = _one_line(text)
    if "|" in text:  # tables end a cell at a pipe, even inside backticks
        return f"<code>{escape(text)}</code>"
    if not text.strip():
        return "``` ```"
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(text: str) -> str:
    """Return a block of code that can be copied line by line."""
    fence = "`" * max(3, _longest_run(text) + 1)
    lines = (visible(line) for line in text.splitlines())
    return "\n".join((f"{fence}sh", *lines, fence))


def _longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max((len(list(run)) for tick, run in groupby(text) if tick == "`"), default=0)


def _one_line(text: str) -> str:
    return visible(" ".join(text.splitlines()))


@cache
def _environment(lang: str) -> jinja2.Environment:
    """Return templates in which every value is shown in ``lang`` and escaped for Markdown."""

    def plain(text: Text | str) -> str:
        return text.in_language(lang) if isinstance(text, Text) else str(text)

    def prose(text: Text) -> str:
        """Keep what stands between backticks as code."""
        parts = plain(text).split("`")
        if len(parts) % 2 == 0:
            return escape("`".join(parts))
        return "".join(code(part) if i % 2 else escape(part) for i, part in enumerate(parts))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: plain(value) if isinstance(value, Text) else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        block=block,
        code=lambda text: code(plain(text)),
        cell=lambda cell: prose(cell) if isinstance(cell, Text) else code(cell),
        prose=prose,
        fill=lambda text, **values: plain(text).format(**values),
    )
    environment.globals.update(
        labels=labels,
        words=labels.WORDS,
        show=show,
        show_in=show_in,
        show_short=show_short,
        max_rows=MAX_ROWS,
    )
    return environment
