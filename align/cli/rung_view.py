"""One rung's result as text for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from align.core.figure import Cell, Table
from align.core.finding import Evidence, Finding
from align.core.rung import RungResult
from align.core.text import Text

_MISSING = {
    "reference": Text("missing in the reference", "参考侧缺少"),
    "candidate": Text("missing in the candidate", "被测侧缺少"),
    "both": Text("missing in both runs", "两侧都缺少"),
}


def as_text(result: RungResult, lang: str, *, show_all: bool = False) -> str:
    """Return summary, findings with their evidence and what is missing; tables on request."""
    lines = [f"{result.status.value}: {result.summary.in_language(lang)}"]
    for finding in result.findings:
        lines += ["", *finding_lines(finding, lang)]
    for missing in result.missing:
        artifact, how = missing.artifact.in_language(lang), missing.how_to_record.in_language(lang)
        lines += ["", f"{_MISSING[missing.side].in_language(lang)}: {artifact}. {how}"]
    for table in result.tables if show_all else ():
        lines += ["", *table_lines(table, lang)]
    return "\n".join(lines)


def finding_lines(finding: Finding, lang: str) -> Iterator[str]:
    """Yield a finding's title, evidence, reason and fix."""
    yield f"[{finding.severity.value}] {finding.id}: {finding.title.in_language(lang)}"
    for evidence in finding.evidence:
        yield f"  {evidence.side.value}: {_place(evidence)}"
    yield f"  {finding.why.in_language(lang)}"
    yield f"  -> {finding.fix.in_language(lang)}"


def _place(evidence: Evidence) -> str:
    where = f"{evidence.source}:{evidence.line}" if evidence.line else evidence.source
    shown = evidence.text or " ".join(
        [evidence.key or "", *(_cell(value, "en") for value in evidence.values)]
    )
    return f"{where}: {shown.strip()}" if shown.strip() else where


def table_lines(table: Table, lang: str) -> Iterator[str]:
    """Align the columns; the last one is free text."""
    heads = [column.title.in_language(lang) for column in table.columns]
    rows = [heads, *([_cell(value, lang) for value in row] for row in table.rows)]
    widths = [max(_width(row[i]) for row in rows) for i in range(len(heads))]
    yield f"{table.title.in_language(lang)}:"
    for row in rows:
        cells = []
        for cell, width, column in zip(row, widths, table.columns, strict=True):
            blanks = " " * (width - _width(cell))
            cells.append(blanks + cell if column.numeric else cell + blanks)
        yield f"  {'  '.join(cells)}".rstrip()


def _cell(value: Cell, lang: str) -> str:
    if isinstance(value, Text):
        return value.in_language(lang)
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _width(text: str) -> int:
    """Return how many terminal columns a text takes: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
