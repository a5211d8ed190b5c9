"""The config rung as text for a terminal."""

from __future__ import annotations

from align.core.finding import Evidence, Finding
from align.core.rung import RungResult


def as_text(result: RungResult, lang: str, *, show_all: bool) -> str:
    """Return every finding with its evidence; with ``show_all`` all compared values too."""
    lines = [result.summary.in_language(lang)]
    for finding in result.findings:
        lines += _finding(finding, lang)
    for missing in result.missing:
        artifact, how = missing.artifact.in_language(lang), missing.how_to_record.in_language(lang)
        lines.append(f"{missing.side}: {artifact}: {how}")
    for table in result.tables if show_all else ():
        lines.append(f"\n{table.title.in_language(lang)}")
        lines += ["  " + "  ".join(str(cell) for cell in row) for row in table.rows]
    return "\n".join(lines)


def _finding(finding: Finding, lang: str) -> list[str]:
    return [
        f"\n[{finding.severity.value}] {finding.id}: {finding.title.in_language(lang)}",
        *(f"  {_place(evidence)}" for evidence in finding.evidence),
        f"  {finding.why.in_language(lang)}",
        f"  -> {finding.fix.in_language(lang)}",
    ]


def _place(evidence: Evidence) -> str:
    where = f"{evidence.source}:{evidence.line}" if evidence.line else evidence.source
    stated = f": {evidence.text.strip()}" if evidence.text else ""
    return f"{evidence.side.value}: {where}{stated}"
