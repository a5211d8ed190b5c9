"""Hold every recorded update of a run against the loss its configuration declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from align.core.config_value import EffectiveConfig
from align.core.finding import Side
from align.core.text import Text
from align.objective.errors import ObjectiveError
from align.referee.captured_updates import recorded_updates
from align.referee.clip_search import clip_ranges
from align.referee.hypotheses import Hypothesis, hypotheses
from align.referee.objective import Normalisation, Objective, declared_objective
from align.referee.on_policy import on_policy_updates
from align.referee.recompute import Amount
from align.referee.report import Report, reports_of
from align.referee.training_pass import Apart, passes_apart
from dumps.store.run_data import RunData

_KEPT = 3  # misfits that a finding quotes


@dataclass(frozen=True, slots=True)
class Misfit:
    """A reported number that the declared loss does not give."""

    report: Report
    metric: str
    declared: Amount

    @property
    def reported(self) -> float:
        """The number itself."""
        return self.report.values[self.metric]


@dataclass(frozen=True, slots=True)
class Examined:
    """One run's recorded updates beside its declared loss.

    Args:
        objective: what the configuration declares.
        num_reports: how many were judged.
        assumed: the updates' log_probs are not recorded, and taken to be old_log_probs.
        misfits: of the first reports that have one, each its first.
        num_misfits: how many reports have one.
        passes: at the first update, before and in training; None where updates are not recorded.
        fits: the hypotheses that give every reported number, where the declared loss does not.
    """

    side: Side
    objective: Objective
    num_reports: int
    assumed: bool
    misfits: tuple[Misfit, ...]
    num_misfits: int
    fits: tuple[Hypothesis, ...]
    passes: Apart | None = None

    @property
    def cause(self) -> Hypothesis | None:
        """The one explanation that fits; None where none does, or different ones do."""
        one = len({fit.id for fit in self.fits}) == 1
        return self.fits[0] if one else None


@dataclass
class _Judged:
    """The reports judged so far, and the first of those that a declared loss does not give."""

    num_reports: int = 0
    num_misfits: int = 0
    kept: list[Misfit] = field(default_factory=list)

    def add(self, report: Report, objective: Objective) -> None:
        misfit = first_misfit(report, objective)
        self.num_reports += 1
        self.num_misfits += misfit is not None
        if misfit is not None and len(self.kept) < _KEPT:
            self.kept.append(misfit)


def examine(
    side: Side, run: RunData, config: EffectiveConfig, step: int | None = None
) -> Examined | Text:
    """Judge a run's recorded updates, or say why that is not possible.

    Args:
        step: judge one step alone.
    """
    objective = declared_objective(config)
    if isinstance(objective, Text):
        return objective
    wide, narrow = _Judged(), _Judged()
    passes: Apart | None = None
    for report in reports(run, config, objective, step):
        passes = passes or passes_apart(report.updates[0])
        wide.add(report, objective)
        rounded = report.in_bfloat16()
        if rounded is not None:
            narrow.add(rounded, objective)
    if not wide.num_reports:
        return Text("its updates are not recorded", "未记录其更新")
    assumed = next(recorded_updates(run, step), None) is None
    again = partial(reports, run, config, objective, step)
    judged, fits = wide, _fits_of(wide, objective, again)
    if narrow.kept and narrow.num_reports == wide.num_reports:
        rounded_again = (r for report in again() if (r := report.in_bfloat16()) is not None)
        found = _fits_of(narrow, objective, lambda: rounded_again)
        if len({fit.id for fit in found}) == 1:
            judged, fits = narrow, found
    if assumed and judged.kept and not fits:
        return Text(
            "its updates are not recorded, and it does not report the loss of old_log_probs",
            "未记录其更新，且所报告的损失与 old_log_probs 的计算结果不符",
        )
    return Examined(
        *(side, objective, wide.num_reports, assumed),
        *(tuple(judged.kept), judged.num_misfits, tuple(fits)),
        passes=None if assumed else passes,
    )


def _fits_of(
    judged: _Judged, objective: Objective, again: Callable[[], Iterable[Report]]
) -> list[Hypothesis]:
    """Return the hypotheses that give every report, where the declared loss does not."""
    alive = _explaining(objective, judged.kept) if judged.kept else []
    return _fitting(alive, again()) if alive else []


def reports(
    run: RunData, config: EffectiveConfig, objective: Objective, step: int | None = None
) -> Iterator[Report]:
    """Yield what an objective can be judged by, a step at a time, as steps can be large."""
    updates = recorded_updates(run, step)
    first = next(updates, None)
    if first is not None:
        updates = chain([first], updates)
    elif objective.normalisation is Normalisation.MINI_BATCH:
        updates = on_policy_updates(run, config, step)
    return (report for report in reports_of(updates, run) if report.amounts(objective))


def first_misfit(report: Report, objective: Objective) -> Misfit | None:
    """Return the first number an objective does not give, in the order of the computation."""
    for name, amount in report.amounts(objective).items():
        if not report.meets(name, amount):
            return Misfit(report, name, amount)
    return None


def _explaining(objective: Objective, misfits: Sequence[Misfit]) -> list[Hypothesis]:
    ranges = [found for m in misfits[:1] for found in clip_ranges(objective, m.report)]
    return _fitting(hypotheses(objective, ranges), [misfit.report for misfit in misfits])


def _fitting(tried: Iterable[Hypothesis], judged: Iterable[Report]) -> list[Hypothesis]:
    """Return the hypotheses that give every number of every report, in one pass."""
    alive = list(tried)
    for report in judged:
        alive = [hypothesis for hypothesis in alive if _fits(report, hypothesis)]
    return alive


def _fits(report: Report, hypothesis: Hypothesis) -> bool:
    """Whether a formula gives all numbers, those that it drops from the report aside."""
    try:
        return first_misfit(report, hypothesis.objective) is None
    except ObjectiveError:  # a formula that this loss cannot have
        return False
