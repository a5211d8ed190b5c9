"""Tell from a finished trial whether its verdict is good or bad."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from align.bisect.plan import ExitCodeTest, FindingTest, MetricTest, RungTest, Test
from align.bisect.runs import load
from align.bisect.search import Outcome
from align.bisect.vote import Reading
from align.core.errors import AlignError
from align.core.finding import Severity
from align.core.run import ArtifactKind
from align.core.rung import RungStatus
from align.ladder import comparisons
from dumps.store.run_data import RunData

SKIP = 125  # as in `git bisect run`


def measure(test: Test, exit_code: int, run: Path, log: Path) -> tuple[Reading, str]:
    """Return the reading of a trial and what it was read from, in words.

    Args:
        run: the folder the command was told to write to.
        log: its output, read where the folder holds no metrics.
    """
    if exit_code == SKIP:
        return Reading(Outcome.UNRESOLVED), "exit code 125"
    if isinstance(test, ExitCodeTest):
        return Reading(Outcome.BAD if exit_code else Outcome.GOOD), f"exit code {exit_code}"
    if exit_code:
        return Reading(Outcome.UNRESOLVED), f"the command failed: exit code {exit_code}"
    try:
        trial = _trial(run, log)
        if isinstance(test, MetricTest):
            reference = None if test.reference is None else load([test.reference])
            return _metric(test, trial, reference)
        return _compared(test, load([test.reference]), trial)
    except AlignError as error:
        return Reading(Outcome.UNRESOLVED), str(error)


def _trial(run: Path, log: Path) -> RunData:
    data = load([run])
    return data if data.run.of_kind(ArtifactKind.METRICS) else load([run, log])


def _metric(test: MetricTest, trial: RunData, reference: RunData | None) -> tuple[Reading, str]:
    series = trial.metrics.get(test.metric)
    if series is None or not len(series):
        return Reading(Outcome.UNRESOLVED), f"{test.metric} is not recorded"
    steps = series.steps
    other = None if reference is None else reference.metrics.get(test.metric)
    if reference is not None:
        if other is None:
            return Reading(Outcome.UNRESOLVED), f"the reference does not record {test.metric}"
        steps = np.intersect1d(steps, other.steps)
    steps = steps[-test.steps :] if test.steps else steps
    if not len(steps):
        return Reading(Outcome.UNRESOLVED), f"no common step of {test.metric}"
    value = float(series.values[np.isin(series.steps, steps)].mean())
    if other is not None:
        base = float(other.values[np.isin(other.steps, steps)].mean())
        value = _relative(value, base)
    said = f"{test.metric} {value:.6g} over {len(steps)} steps"
    if not np.isfinite(value):
        return Reading(Outcome.BAD), said
    distance = (value - test.threshold) * (1 if test.bad_above else -1)
    return Reading(Outcome.BAD if distance > 0 else Outcome.GOOD, distance), said


def _relative(value: float, base: float) -> float:
    if value == base:
        return 0.0
    return abs(value - base) / abs(base) if base else float("inf")


def _compared(
    test: FindingTest | RungTest, reference: RunData, trial: RunData
) -> tuple[Reading, str]:
    result = comparisons()[test.rung](reference, trial)
    if result.status is RungStatus.MISSING:
        return Reading(Outcome.UNRESOLVED), result.summary.en
    if isinstance(test, RungTest):
        outcome = Outcome.BAD if result.status is RungStatus.DIVERGED else Outcome.GOOD
        return Reading(outcome), f"{test.rung.value}: {result.status.value}"
    found = [
        f.id
        for f in result.findings
        if f.severity is not Severity.INFO and fnmatchcase(f.id, test.pattern)
    ]
    said = ", ".join(found) or f"no {test.pattern}"
    return Reading(Outcome.BAD if found else Outcome.GOOD), said
