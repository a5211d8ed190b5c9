"""The zoo's confusion table, as a document and as a section of docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from align.core.errors import DocumentError
from align.stack.zoo import Outcome
from dumps.store.atomic import write_atomic

_BEGIN, _END = "<!-- zoo: written by `align zoo --write-docs` -->", "<!-- zoo: end -->"


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


def write_section(path: Path, text: str) -> None:
    """Replace the zoo's section of a document, or add it at its end.

    Raises:
        DocumentError: The section has a beginning and no end.
    """
    document = path.read_text(encoding="utf-8") if path.is_file() else "# Accuracy\n"
    section = f"{_BEGIN}\n{text}{_END}\n"
    if _BEGIN not in document:
        write_atomic(path, f"{document.rstrip()}\n\n## The fault zoo\n\n{section}")
        return
    before, _, rest = document.partition(_BEGIN)
    _, found, after = rest.partition(f"{_END}\n")
    if not found:
        raise DocumentError(
            where=str(path), problem=f"lacks the line {_END}", fix="restore it, or the file"
        )
    write_atomic(path, before + section + after)


def _reported(outcome: Outcome) -> str:
    if outcome.problem or not outcome.reported:
        return outcome.problem or f"nothing ({outcome.status})"
    return f"{outcome.reported} ({outcome.status}{'' if outcome.blamed else ', cause unknown'})"


def _mark(outcome: Outcome) -> str:
    if outcome.is_fault and not outcome.acts:
        return "no effect"
    return "yes" if outcome.right else "**no**"
