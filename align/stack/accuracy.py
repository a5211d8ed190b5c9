"""The zoo's confusion table, as a document and as a section of docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from align.core.errors import DocumentError
from align.stack.zoo import Outcome
from dumps.store.atomic import write_atomic


@dataclass(frozen=True, slots=True)
class Section:
    """Where a table stands in the document: between two lines, under a heading."""

    begin: str
    end: str
    heading: str


ZOO = Section(
    "<!-- zoo: written by `align zoo --write-docs` -->", "<!-- zoo: end -->", "The fault zoo"
)
LOGS = Section(
    "<!-- logs: written by `align zoo --evidence logs --write-docs` -->",
    "<!-- logs: end -->",
    "The fault zoo with logs and configurations alone",
)


def to_document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the headline figures and one row a trial, ready for JSON."""
    planted = [o for o in outcomes if o.is_fault]
    clean = [o for o in outcomes if not o.is_fault]
    return {
        "schema_version": 1,
        "faults": len(planted),
        "faults_named_first": sum(o.right for o in planted),
        "wrong_causes": sum(o.blamed and not o.right for o in planted),
        "clean_pairs": len(clean),
        "false_alarms": sum(not o.right for o in clean),
        "table": [{**asdict(o), "errors": list(o.errors)} for o in outcomes],
    }


def headline(outcomes: Sequence[Outcome]) -> str:
    """Return the two figures in one line."""
    d = to_document(outcomes)
    return (
        f"faults named first: {d['faults_named_first']} of {d['faults']}, "
        f"another cause blamed: {d['wrong_causes']}; "
        f"false alarms: {d['false_alarms']} of {d['clean_pairs']} clean pairs"
    )


def markdown(outcomes: Sequence[Outcome], *, date: str, commit: str) -> str:
    """Return the section: figures, faults by rung, clean pairs."""
    lines = [
        f"{headline(outcomes)}.",
        "",
        f"Measured {date} at commit {commit}. A fault counts when the verdict names its finding "
        "first; a rung that is not built yet is a miss. Every fault is checked to change the run. "
        "A clean pair counts as a false alarm when the verdict is `diverged` or any finding is an "
        "error.",
        "",
        "| rung | fault | must be named | was named | |",
        "|---|---|---|---|---|",
        *(
            f"| {o.rung} | {o.name} | {o.expected} | {_reported(o)} | {_mark(o)} |"
            for o in outcomes
            if o.is_fault
        ),
        "",
        "| clean pair | verdict | errors | |",
        "|---|---|---|---|",
        *(
            f"| {o.name.removeprefix('clean:')} | {_reported(o)} | "
            f"{', '.join(o.errors) or 'none'} | {_mark(o)} |"
            for o in outcomes
            if not o.is_fault
        ),
    ]
    return "\n".join(lines) + "\n"


def headline_of_logs(outcomes: Sequence[Outcome]) -> str:
    """Return in one line how little evidence was used."""
    planted, clean = ([o for o in outcomes if o.is_fault is kind] for kind in (True, False))
    named = sum(o.blamed and o.is_honest for o in planted)
    unknown = sum(not o.blamed and o.is_honest for o in planted)
    return (
        f"right link named: {named} of {len(planted)}, "
        f"said to be unknown, with what to do next: {unknown}, "
        f"wrong: {len(planted) - named - unknown}; "
        f"false alarms: {sum(not o.right for o in clean)} of {len(clean)} clean pairs"
    )


def markdown_of_logs(outcomes: Sequence[Outcome], *, date: str, commit: str) -> str:
    """Return the section of reports made of logs and configurations alone."""
    lines = [
        f"{headline_of_logs(outcomes)}.",
        "",
        f"Measured {date} at commit {commit}: console log, metrics and configurations of the same "
        "runs, no dumps or captures. What cannot be seen in them must be called unknown, never "
        "blamed on something else.",
        "",
        "| rung | fault | said | |",
        "|---|---|---|---|",
        *(
            f"| {o.rung or 'clean'} | {o.name.removeprefix('clean:')} | {_reported(o)} "
            f"| {'yes' if o.is_honest else '**no**'} |"
            for o in outcomes
        ),
    ]
    return "\n".join(lines) + "\n"


def write_section(path: Path, section: Section, text: str) -> None:
    """Replace a section of a document, or add it at its end.

    Raises:
        DocumentError: The section has a beginning and no end.
    """
    document = path.read_text(encoding="utf-8") if path.is_file() else "# Accuracy\n"
    written = f"{section.begin}\n{text}{section.end}\n"
    if section.begin not in document:
        write_atomic(path, f"{document.rstrip()}\n\n## {section.heading}\n\n{written}")
        return
    before, _, rest = document.partition(section.begin)
    _, found, after = rest.partition(f"{section.end}\n")
    if not found:
        raise DocumentError(
            where=str(path), problem=f"lacks the line {section.end}", fix="restore it, or the file"
        )
    write_atomic(path, before + written + after)


def _reported(outcome: Outcome) -> str:
    if outcome.problem or not outcome.reported:
        return outcome.problem or f"nothing ({outcome.status})"
    return f"{outcome.reported} ({outcome.status}{'' if outcome.blamed else ', cause unknown'})"


def _mark(outcome: Outcome) -> str:
    if outcome.is_fault and not outcome.acts:
        return "no effect"
    return "yes" if outcome.right else "**no**"
