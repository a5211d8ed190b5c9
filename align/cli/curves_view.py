"""Show what the curves rung found as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from align.core.figure import Table
from align.core.finding import Evidence, Finding, Scalar
from align.core.rung import RungResult


def as_text(result: RungResult, lang: str, *, show_all: bool = False) -> str:
    """Return summary, findings with their evidence and acceptance; all metrics on request."""
    lines = [f"{result.status.value}: {result.summary.in_language(lang)}"]
    for finding in result.findings:
        lines += ["", *_finding(finding, lang)]
    for missing in result.missing:
        lines += ["", missing.how_to_record.in_language(lang)]
    for table in result.tables:
        if table.id == "curves.acceptance" or show_all:
            lines += ["", *_table(table, lang)]
    return "\n".join(lines)


def _finding(finding: Finding, lang: str) -> Iterator[str]:
    yield f"{finding.severity.value:<8} {finding.id}"
    yield f"  {finding.title.in_language(lang)}"
    yield f"  {finding.why.in_language(lang)}"
    for evidence in finding.evidence:
        yield f"  {evidence.side.value}: {_place(evidence)}"


def _place(evidence: Evidence) -> str:
    line = "" if evidence.line is None else f":{evidence.line}"
    values = ", ".join(map(_cell, evidence.values))
    return f"{evidence.source}{line} {evidence.key or ''} {values}".rstrip()


def _table(table: Table, lang: str) -> Iterator[str]:
    """Align the columns; the last one is free text."""
    heads = [column.title.in_language(lang) for column in table.columns]
    rows = [heads, *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    yield f"{table.title.in_language(lang)}:"
    for row in rows:
        cells = (
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        )
        yield f"  {'  '.join(cells)}".rstrip()


def _cell(value: Scalar) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
