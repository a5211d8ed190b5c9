"""Draw a report as one HTML page that needs nothing beside itself.

A content security policy forbids every request and every script but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from align.core.document import SCHEMA_VERSION, from_document
from align.core.text import Text
from reports import labels
from reports.cells import show, show_in, show_short, visible
from reports.render.view import MAX_ROWS, Section, sections_of

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
HTML_LANG = {"en": "en", "zh": "zh-CN"}


def render(document: Mapping[str, Any], lang: str) -> str:
    """Return the page for a report document.

    Args:
        document: parsed report.json; nothing else is looked at.
        lang: "en" or "zh".

    Raises:
        DocumentError: The document is not a report, or of another schema version.
    """
    report = from_document(document, where="report document")
    sections = sections_of(report)
    return (
        environment(lang)
        .get_template("report.html.jinja")
        .render(
            report=report,
            sections=sections,
            num_findings=sum(len(section.findings) for section in sections),
            any_missing=any(rung.missing for rung in report.rungs)
            or not all(section.has_content for section in sections),
            anchor_of=lambda finding_id: _anchor_of(finding_id, sections),
        )
    )


@cache
def environment(lang: str) -> jinja2.Environment:
    """Return templates in which every value is shown in ``lang``, visible and escaped."""

    def finalize(value: object) -> object:
        if isinstance(value, Markup):
            return value
        return visible(value.in_language(lang) if isinstance(value, Text) else str(value))

    def prose(text: Text) -> Markup:
        """Set what stands between backticks as code."""
        parts = visible(text.in_language(lang)).split("`")
        if len(parts) % 2 == 0:  # one backtick has no partner: they are no quotes
            return escape("`".join(parts))
        return Markup("").join(
            Markup("<code>{}</code>").format(part) if i % 2 else part
            for i, part in enumerate(parts)
        )

    script = _asset("report.js")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def fill(text: Text, **values: object) -> str:
        said = {n: v.in_language(lang) if isinstance(v, Text) else v for n, v in values.items()}
        return text.in_language(lang).format(**said)

    environment.filters.update(prose=prose, fill=fill)
    environment.globals.update(
        labels=labels,
        words=labels.WORDS,
        show=show,
        show_in=show_in,
        show_short=show_short,
        max_rows=MAX_ROWS,
        html_lang=HTML_LANG[lang],
        schema_version=SCHEMA_VERSION,
        css=Markup(_asset("report.css")),
        script=Markup(script),
        script_hash=_content_hash(script),
    )
    return environment


def _asset(name: str) -> str:
    """Read a file of this package; it is ours, so it is not escaped."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _content_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _anchor_of(finding_id: str, sections: tuple[Section, ...]) -> str:
    """Find the finding the verdict speaks of; without one, its list."""
    placed = (placed for section in sections for placed in section.findings)
    return next((p.anchor for p in placed if p.finding.id == finding_id), "findings")
