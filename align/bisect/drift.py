"""How far two recorded runs narrow a drift down: step, metric, task, row, token, layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from align.bisect.drift_rows import FirstRows, first_rows
from align.bisect.drift_tasks import TaskShift, task_shifts
from align.bisect.level import Level, LevelStatus
from align.bisect.level_texts import (
    layer_level,
    metric_level,
    row_level,
    step_level,
    task_level,
    token_level,
)
from align.core.errors import ExitCode
from align.core.finding import Finding, Severity
from align.core.report import Report
from align.core.rung import Rung
from align.core.text import Text
from align.core.verdict import Verdict, VerdictStatus
from dumps.store.rollout_pair import pair_rollouts
from dumps.store.run_data import RunData

_PLACES = (Rung.ROLLOUT, Rung.TOKENS, Rung.FORWARD, Rung.REWARD, Rung.BACKWARD, Rung.WEIGHT_SYNC)


@dataclass(frozen=True, slots=True)
class Drift:
    """The levels, from the widest to the narrowest; none where nothing drifts."""

    levels: tuple[Level, ...]
    verdict: Verdict  # of the ladder

    @property
    def smallest(self) -> Level | None:
        """The narrowest place that is known."""
        found = [level for level in self.levels if level.status is LevelStatus.FOUND]
        return found[-1] if found else None

    @property
    def missing(self) -> tuple[Level, ...]:
        """Levels that were not recorded."""
        return tuple(level for level in self.levels if level.status is LevelStatus.MISSING)

    @property
    def next_step(self) -> Text | None:
        """How to record what is missing behind the smallest place, else anywhere."""
        order = [level.name for level in self.levels]
        reached = order.index(self.smallest.name) if self.smallest else -1
        behind = [level for level in self.missing if order.index(level.name) > reached]
        return next((level.missing for level in (*behind, *self.missing)), None)

    @property
    def exit_code(self) -> ExitCode:
        """0 for no drift beyond doubt, 1 for one, 3 where nothing can be compared."""
        if self.verdict.status is VerdictStatus.NOT_COMPARABLE:
            return ExitCode.NOT_COMPARABLE
        diverged = self.verdict.status is VerdictStatus.DIVERGED
        return ExitCode.FINDINGS if diverged else ExitCode.ALIGNED


def drift_of(report: Report, reference: RunData, candidate: RunData) -> Drift:
    """Narrow down what a report of two runs shows, with the rows both recorded.

    Args:
        report: of the same two runs.
    """
    symptoms = _symptoms(report)
    placed = [f for rung in report.rungs if rung.name in _PLACES for f in _weighty(rung.findings)]
    if not symptoms and not placed:
        return Drift((), report.verdict)
    rows: FirstRows | None = None
    shifts: tuple[TaskShift, ...] | None = None
    if len(reference.rollouts) and len(candidate.rollouts):
        pair = pair_rollouts(reference.rollouts, candidate.rollouts)
        onset = symptoms[0].symptom.step if symptoms and symptoms[0].symptom else None
        rows, shifts = first_rows(pair), task_shifts(pair, onset)
    rungs = {rung.name: rung for rung in report.rungs}
    levels = (
        step_level(symptoms, rows),
        metric_level(symptoms),
        task_level(shifts),
        row_level(rows, rungs),
        token_level(rows, rungs),
        layer_level(rungs),
    )
    return Drift(levels, report.verdict)


def to_document(drift: Drift) -> dict[str, Any]:
    """Return the drift as JSON-ready values."""
    smallest, following = drift.smallest, drift.next_step
    return {
        "schema_version": 1,
        "status": drift.verdict.status.value,
        "verdict": drift.verdict.sentence.en,
        "smallest": smallest.name if smallest else None,
        "place": smallest.place.en if smallest else None,
        "next_step": following.en if following else None,
        "levels": [
            {
                "level": level.name,
                "status": level.status.value,
                "place": level.place.en,
                "findings": list(level.findings),
                "missing": level.missing.en if level.missing else None,
                "evidence": [
                    {"source": e.source, "side": e.side.value, "line": e.line, "text": e.text}
                    for e in level.evidence
                ],
                "zh": {
                    "place": level.place.zh,
                    "missing": level.missing.zh if level.missing else None,
                },
            }
            for level in drift.levels
        ],
        "zh": {
            "verdict": drift.verdict.sentence.zh,
            "place": smallest.place.zh if smallest else None,
            "next_step": following.zh if following else None,
        },
    }


_NAMES = {
    "step": Text("step", "步"),
    "metric": Text("metric", "指标"),
    "task": Text("task", "任务"),
    "row": Text("row", "行"),
    "token": Text("token", "token"),
    "layer": Text("layer", "层"),
}
_UNKNOWN = Text("not known", "未知")
_NONE = Text(
    "no metric drifts beyond noise, and no recorded row, token or layer differs",
    "没有指标偏离超出噪声，记录的行、token 与层也没有差异",
)
_SMALLEST = Text("smallest place known", "目前已知的最小位置")
_NEXT = Text("to go further", "如需进一步缩小")


def as_lines(drift: Drift, lang: str) -> Iterator[str]:
    """Yield the drift as a reader sees it: the ladder's verdict, then a line a level."""
    yield f"{drift.verdict.status.value}: {drift.verdict.sentence.in_language(lang)}"
    if not drift.levels:
        yield _NONE.in_language(lang)
        return
    for level in drift.levels:
        head = _NAMES[level.name].in_language(lang)
        if level.status is LevelStatus.MISSING:
            yield f"{head}: {_UNKNOWN.in_language(lang)}: {level.place.in_language(lang)}"
            continue
        yield f"{head}: {level.place.in_language(lang)}"
        for item in level.evidence:
            line = f":{item.line}" if item.line else ""
            yield f"  {item.side.value}: {item.source}{line}: {item.text}"
    smallest, following = drift.smallest, drift.next_step
    if smallest is not None:
        yield f"{_SMALLEST.in_language(lang)}: {_NAMES[smallest.name].in_language(lang)}"
    if following is not None:
        yield f"{_NEXT.in_language(lang)}: {following.in_language(lang)}"


def _symptoms(report: Report) -> list[Finding]:
    """Return what drifts, the first in time first, then in causal order."""
    shown = [f for rung in report.rungs for f in _weighty(rung.findings) if f.symptom]
    return sorted(shown, key=_onset)


def _onset(finding: Finding) -> tuple[int, int, int, str]:
    assert finding.symptom is not None
    at = finding.symptom
    return at.step, at.rung.position, finding.severity.rank, at.metric


def _weighty(findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity is not Severity.INFO]
