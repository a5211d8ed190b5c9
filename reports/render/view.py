"""What the page shows beyond the report itself: anchors, figures, and which rungs get a section."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from align.core.figure import Curve, CurvePair
from align.core.finding import Finding
from align.core.report import Report
from align.core.rung import RungResult, RungStatus
from reports.figures import Drawing, draw
from reports.grids import GridDrawing, grids_of
from reports.profiles import Depth, depths_of

MAX_FIGURES = 24  # at 30 KB each these stay well below the page's 2 MB
MAX_ROWS = 2000  # of one table; the rest stands in report.json


@dataclass(frozen=True, slots=True)
class Placed:
    """A finding and its place in the page."""

    finding: Finding
    anchor: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure, the finding it belongs to, and the last smoothed value of each run."""

    pair: CurvePair
    drawing: Drawing
    anchor: str | None

    @property
    def ends(self) -> tuple[tuple[str, tuple[int, float] | None], ...]:
        """Return (side, (step, value)) of both runs."""
        return (
            ("reference", _last(self.pair.reference)),
            ("candidate", _last(self.pair.candidate)),
        )


@dataclass(frozen=True, slots=True)
class Section:
    """One rung, numbered from 1 as in the ladder."""

    number: int
    result: RungResult
    findings: tuple[Placed, ...]
    figures: tuple[Drawn, ...]
    undrawn: tuple[CurvePair, ...]

    @property
    def tasks(self) -> tuple[Drawn, ...]:
        """The figures of single tasks, which are drawn small."""
        return tuple(drawn for drawn in self.figures if drawn.pair.task)

    @property
    def depths(self) -> tuple[Depth, ...]:
        """Its errors over depth, drawn."""
        return depths_of(self.result.profiles)

    @property
    def grids(self) -> tuple[GridDrawing, ...]:
        """Its errors within one tensor, drawn."""
        return grids_of(self.result.grids)

    @property
    def has_content(self) -> bool:
        """Whether the rung gets a section of its own, beyond what it misses."""
        shown = self.findings or self.figures or self.undrawn or self.result.tables
        return bool(shown) or self.result.status is not RungStatus.MISSING


def sections_of(report: Report) -> tuple[Section, ...]:
    """Lay the report out: one section a rung, with at most `MAX_FIGURES` figures in all."""
    anchors = _anchors(report)
    anchor_of_id = {finding.id: anchor for finding, anchor in reversed(anchors)}
    pairs = [pair for rung in report.rungs for pair in rung.curves]
    drawings = draw(pairs[:MAX_FIGURES]) if pairs else iter(())
    placed = iter(anchors)
    return tuple(
        _section(number, rung, placed, drawings, anchor_of_id)
        for number, rung in enumerate(report.rungs, start=1)
    )


def _section(
    number: int,
    rung: RungResult,
    placed: Iterator[tuple[Finding, str]],
    drawings: Iterator[Drawing],
    anchor_of_id: dict[str, str],
) -> Section:
    figures = tuple(
        Drawn(pair, drawing, anchor_of_id.get(pair.finding_id or ""))
        for pair, drawing in zip(rung.curves, drawings, strict=False)
    )
    return Section(
        number=number,
        result=rung,
        findings=tuple(Placed(*next(placed)) for _ in rung.findings),
        figures=figures,
        undrawn=rung.curves[len(figures) :],
    )


def _anchors(report: Report) -> list[tuple[Finding, str]]:
    """Give every finding an id that is unique in the page, made of its own id."""
    taken: set[str] = set()
    anchors = []
    for finding in (finding for rung in report.rungs for finding in rung.findings):
        base = "finding-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", finding.id)
        anchor, number = base, 2
        while anchor in taken:
            anchor, number = f"{base}-{number}", number + 1
        taken.add(anchor)
        anchors.append((finding, anchor))
    return anchors


def _last(curve: Curve) -> tuple[int, float] | None:
    ends = zip(reversed(curve.steps), reversed(curve.smoothed), strict=True)
    return next(((step, value) for step, value in ends if math.isfinite(value)), None)
