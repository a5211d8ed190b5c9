"""What a report says of faults planted into a real framework, and of clean pairs of it.

A fault counts when the verdict names its finding first, at its module where it has one. A clean
pair counts as a false alarm when the verdict is "diverged" or any finding is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from align.core.finding import Severity
from align.core.report import Report
from align.core.verdict import VerdictStatus
from align.ladder import climb
from dumps.store.discover import discover
from dumps.store.run_data import RunData


@dataclass(frozen=True)
class Must:
    """What the verdict must name.

    Args:
        finding: any of these.
        place: text of the finding's title, such as the module; "" where there is none.
        reference: the run that the fault's is compared with.
    """

    finding: tuple[str, ...]
    place: str = ""
    reference: str = "reference"

    @property
    def text(self) -> str:
        """In words."""
        return " or ".join(self.finding) + (f" at {self.place}" if self.place else "")


@dataclass(frozen=True)
class Judged:
    """A row of the table.

    Args:
        must: None for a clean pair.
    """

    name: str
    must: Must | None
    named: str
    is_right: bool

    @property
    def text(self) -> str:
        """As a row of Markdown."""
        return self.row(self.name)

    def row(self, what: str) -> str:
        """As a row of Markdown, in other words than its name."""
        wanted = "nothing" if self.must is None else self.must.text
        return f"| {what} | {wanted} | {self.named} | {'yes' if self.is_right else '**no**'} |"


def judge(name: str, must: Must | None, reference: Path | None, candidate: Path | None) -> Judged:
    """Compare two run folders; None is a run that failed."""
    if reference is None or candidate is None:
        return Judged(name, must, "the run failed", False)
    report = climb(*(RunData(discover([path])) for path in (reference, candidate)))
    verdict = report.verdict
    title = _titles(report).get(verdict.finding_id or "", "")
    said = f"{verdict.finding_id or 'nothing'} ({verdict.status.value})"
    if must is None:
        errors = _errors(report)
        said = f"{said}, errors: {', '.join(errors)}" if errors else said
        return Judged(name, must, said, verdict.status is not VerdictStatus.DIVERGED and not errors)
    is_right = verdict.finding_id in must.finding and must.place in title
    return Judged(name, must, f"{said}: {title}", is_right)


def docstrings(source: Path) -> dict[str, str]:
    """Return what the functions of a file say they do, by name, without importing it."""
    functions = (
        node
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    )
    return {node.name: (ast.get_docstring(node) or node.name).rstrip(".") for node in functions}


def table(judged: Iterable[Judged], words: Mapping[str, str] | None = None) -> str:
    """Return the rows under their counts.

    Args:
        words: what a fault is, by name.
    """
    rows = list(judged)
    faults = [row for row in rows if row.must is not None]
    clean = [row for row in rows if row.must is None]
    named, alarms = sum(r.is_right for r in faults), sum(not r.is_right for r in clean)
    return "\n".join(
        (
            f"faults named first: {named} of {len(faults)}; "
            f"false alarms: {alarms} of {len(clean)} clean pairs.\n",
            "| run | must be named | was named | |\n|---|---|---|---|",
            *(row.row((words or {}).get(row.name, row.name)) for row in rows),
        )
    )


def _titles(report: Report) -> dict[str, str]:
    found = (finding for rung in report.rungs for finding in rung.findings)
    return {each.id: each.title.en for each in reversed([*found])}


def _errors(report: Report) -> list[str]:
    found = (finding for rung in report.rungs for finding in rung.findings)
    return sorted({each.id for each in found if each.severity is Severity.ERROR})
