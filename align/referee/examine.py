"""Hold every recorded update of a run against the loss its configuration declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from align.core.config_value import EffectiveConfig
from align.core.finding import Side
from align.core.text import Text
from align.objective.errors import ObjectiveError
from align.referee.captured_updates import recorded_updates
from align.referee.hypotheses import Hypothesis, hypotheses
from align.referee.objective import Normalisation, Objective, declared_objective
from align.referee.on_policy import on_policy_updates
from align.referee.recompute import Amount
from align.referee.report import Report, reports_of
from dumps.store.run_data import RunData


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
        reports: what was judged.
        assumed: their log_probs are not recorded, and taken to be old_log_probs.
        misfits: the first misfit of each report that has one.
        fits: the hypotheses that give every reported number, where the declared loss does not.
    """

    side: Side
    objective: Objective
    reports: tuple[Report, ...]
    assumed: bool
    misfits: tuple[Misfit, ...]
    fits: tuple[Hypothesis, ...]

    @property
    def cause(self) -> Hypothesis | None:
        """The one explanation that fits; None where none does, or different ones do."""
        one = len({fit.id for fit in self.fits}) == 1
        return self.fits[0] if one else None


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
    updates = list(recorded_updates(run, step))
    assumed = not updates
    if assumed and objective.normalisation is Normalisation.MINI_BATCH:
        updates = list(on_policy_updates(run, config, step))
    reports = tuple(r for r in reports_of(updates, run) if r.amounts(objective))
    if not reports:
        return Text("its updates are not recorded", "未记录其更新")
    misfits = [misfit for report in reports if (misfit := first_misfit(report, objective))]
    fits = tuple(explanations(reports, misfits, objective)) if misfits else ()
    if assumed and misfits and not fits:
        return Text(
            "its updates are not recorded, and it does not report the loss of old_log_probs",
            "未记录其更新，且所报告的损失与 old_log_probs 的计算结果不符",
        )
    return Examined(side, objective, reports, assumed, tuple(misfits), fits)


def first_misfit(report: Report, objective: Objective) -> Misfit | None:
    """Return the first number an objective does not give, in the order of the computation."""
    for name, amount in report.amounts(objective).items():
        if not report.meets(name, amount):
            return Misfit(report, name, amount)
    return None


def explanations(
    reports: Sequence[Report], misfits: Sequence[Misfit], declared: Objective
) -> Iterator[Hypothesis]:
    """Yield the hypotheses that give every reported number of every report."""
    telling = [misfit.report for misfit in misfits]
    for hypothesis in hypotheses(declared):
        if _fits(telling, hypothesis) and _fits(reports, hypothesis):
            yield hypothesis


def _fits(reports: Sequence[Report], hypothesis: Hypothesis) -> bool:
    """Whether a formula gives all numbers, those that it drops from the report aside."""
    try:
        return all(first_misfit(report, hypothesis.objective) is None for report in reports)
    except ObjectiveError:  # a formula that this loss cannot have
        return False
