"""Show a part of a comparison: what some patterns choose, without what others leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from align.config.rung import status, summary
from align.core.figure import Cell, Table
from align.core.finding import Finding
from align.core.rung import RungResult, RungStatus
from align.core.text import Text


def select(result: RungResult, only: Sequence[str], ignore: Sequence[str]) -> RungResult:
    """Return the result with the findings and table rows that the patterns leave.

    Args:
        result: of the config rung.
        only: patterns of which one has to fit; every finding where there are none.
        ignore: patterns of which none may fit.

    A pattern is a name or begins one at a dot, in either case with ``*`` and ``?`` as in fnmatch.
    Names are the field, the original keys of both sides, the rung the field acts on, and the
    severity.
    """
    if result.status is RungStatus.MISSING or not (only or ignore):
        return result

    def chosen(names: Iterable[str]) -> bool:
        names = [name.lower() for name in names]
        return (not only or _any_fits(names, only)) and not _any_fits(names, ignore)

    findings = tuple(f for f in result.findings if chosen(_names(f)))
    kept = tuple(_rows(table, chosen) for table in result.tables)
    num_compared = sum(len(table.rows) for table in kept if table.id == "config.compared")
    counted = summary(num_compared, findings)
    hidden = _hidden(len(result.findings) - len(findings))
    return replace(
        result,
        status=status(num_compared, findings),
        summary=Text(f"{counted.en} {hidden.en}", f"{counted.zh}{hidden.zh}"),
        findings=findings,
        tables=tuple(table for table in kept if table.rows),
    )


def _names(finding: Finding) -> list[str]:
    keys = [key for e in finding.evidence for key in (e.key or "").split(", ") if key]
    rung = [finding.mechanism.acts_on.value] if finding.mechanism else []
    return [finding.id, finding.id.removeprefix("config."), finding.severity.value, *rung, *keys]


def _rows(table: Table, chosen: Callable[[Iterable[str]], bool]) -> Table:
    return replace(table, rows=tuple(row for row in table.rows if chosen(_names_of_row(row))))


def _names_of_row(row: tuple[Cell, ...]) -> list[str]:
    """Return what stands in the cells, and the keys of "key (file:line)"."""
    cells = [str(cell) for cell in row if isinstance(cell, str | Text)]
    keys = [key for cell in cells for key in cell.partition(" (")[0].split(", ")]
    return [*cells, *keys]


def _any_fits(names: Sequence[str], patterns: Iterable[str]) -> bool:
    return any(
        fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
        for pattern in map(str.lower, patterns)
        for name in names
    )


def _hidden(num_findings: int) -> Text:
    return Text(
        f"{num_findings} findings are left out by --only or --ignore.",
        f"--only 或 --ignore 略去了 {num_findings} 条发现。",
    )
