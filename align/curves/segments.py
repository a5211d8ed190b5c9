"""Runs that were resumed: steps written twice, and gaps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from align.core.finding import Evidence, Finding, Severity, Side
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import Rung
from align.core.text import Text

_MAX_SHOWN = 5


def gaps(series: MetricSeries) -> tuple[tuple[int, int], ...]:
    """Return the ranges of steps a series skips, given how far apart its steps usually are."""
    steps = series.steps
    if len(steps) < 3:
        return ()
    apart = np.diff(steps)
    usual = int(np.median(apart))
    at = np.flatnonzero(apart > usual)
    return tuple((int(steps[i]) + usual, int(steps[i + 1]) - usual) for i in at)


def segment_findings(reference: MetricLog, candidate: MetricLog) -> Iterator[Finding]:
    """Yield a note for each side whose log repeats steps or skips some."""
    for side, log in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate)):
        longest = max(log.series, key=len, default=None)
        skipped = () if longest is None else gaps(longest)
        if longest is not None and (log.num_overwritten or skipped):
            yield _finding(side, log, longest, skipped)


def _finding(
    side: Side, log: MetricLog, longest: MetricSeries, skipped: tuple[tuple[int, int], ...]
) -> Finding:
    who = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}[side]
    ranges = ", ".join(f"{a}–{b}" if b > a else f"{a}" for a, b in skipped[:_MAX_SHOWN])
    ranges += ", …" if len(skipped) > _MAX_SHOWN else ""
    parts, parts_zh = [], []
    if log.num_overwritten:
        parts.append(f"{log.num_overwritten} values were written again and the later ones count")
        parts_zh.append(f"有 {log.num_overwritten} 个值被重写，以后写的为准")
    if skipped:
        parts.append(f"steps {ranges} are missing")
        parts_zh.append(f"缺少第 {ranges} 步")
    notes = tuple(
        Evidence(log.source, side, text=note[:200]) for note in log.notes if "differ" in note
    )
    return Finding(
        id=f"curves.segments.{side.value}",
        rung=Rung.CURVES,
        severity=Severity.INFO,
        title=Text(
            f"The {side.value} was resumed or cut: {'; '.join(parts)}",
            f"{who}曾经续训或日志不完整：{'；'.join(parts_zh)}",
        ),
        reference=None,
        candidate=None,
        evidence=notes or (Evidence(longest.source, side),),
        why=Text(
            "Curves are compared at the steps both runs have; a step written twice is taken from "
            "the later segment, as training went on from there.",
            "曲线只在两侧共有的步上比较；重复的步取后一段，因为训练由其继续。",
        ),
        fix=Text(
            "Give all logs of the run, in order, if some are missing.",
            "若缺少部分日志，请按先后给出该运行的全部日志。",
        ),
    )
