"""Where to look closer: the modules around a finding, taken from a report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from align.core.document import from_document
from align.core.errors import DocumentError
from align.core.finding import Finding
from align.core.report import Report
from align.core.rung import RungResult

NEIGHBOURS = 3
"""Modules before and after the finding's own, in the order of computation."""

_PLACE = re.compile(r"^step (\d+) (\w+) (\S+)$")  # the key of evidence about one address


@dataclass(frozen=True, slots=True)
class Zoom:
    """What to record again, whole.

    Args:
        step: in which the finding was made.
        modules: in the order of computation; parameters stand for their modules.
    """

    step: int
    modules: tuple[str, ...]


def read_zoom(text: str) -> Zoom:
    """Read what surrounds a finding.

    Args:
        text: path of a report.json, with ``:`` and the finding's id if it is not the verdict's.

    Raises:
        DocumentError: It is no report, or no such finding is about one module.
    """
    path, finding_id = Path(text), ""
    if not path.is_file():
        name, _, finding_id = text.rpartition(":")
        path = Path(name or text)
    return zoom(_read(path), finding_id, str(path))


def zoom(report: Report, finding_id: str = "", where: str = "report.json") -> Zoom:
    """Return what surrounds a finding, the verdict's unless one is named.

    Raises:
        DocumentError: No such finding is about one module.
    """
    wanted = finding_id or report.verdict.finding_id
    for rung in report.rungs:
        for finding in rung.findings:
            if finding.id == wanted and (found := _around(finding, rung)) is not None:
                return found
    raise DocumentError(
        where=where,
        key=wanted or "verdict",
        problem="is about no single module",
        fix="name a finding of the rungs forward or backward: --zoom report.json:ID",
    )


def _read(path: Path) -> Report:
    try:
        return from_document(json.loads(path.read_text(encoding="utf-8")), where=str(path))
    except (OSError, ValueError) as error:
        raise DocumentError(
            where=str(path),
            problem=f"cannot be read as JSON ({getattr(error, 'strerror', None) or error})",
            fix="give the report.json that `align report` wrote",
        ) from error


def _around(finding: Finding, rung: RungResult) -> Zoom | None:
    places = [_PLACE.match(e.key) for e in finding.evidence if e.key is not None]
    found = next((place for place in places if place is not None), None)
    if found is None:
        return None
    own, names = _module(found[3]), list(dict.fromkeys(_compared(rung)))
    centre = names.index(own) if own in names else None
    near = [own] if centre is None else names[max(0, centre - NEIGHBOURS) : centre + NEIGHBOURS + 1]
    return Zoom(int(found[1]), tuple(near))


def _compared(rung: RungResult) -> Iterator[str]:
    """Yield the modules of a rung's tables of errors, in the order of computation."""
    for table in rung.tables:
        keys = [column.key for column in table.columns]
        if "module" in keys and "relative_error" in keys:
            place = keys.index("module")
            yield from (_module(str(row[place])) for row in table.rows)


def _module(name: str) -> str:
    """Return the module of an address or a parameter."""
    return name.removesuffix(".weight").removesuffix(".bias")
