"""Numbers that were reported together: of one update, or averaged over the updates of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from align.core.text import Text
from align.referee.objective import Objective
from align.referee.recompute import KL, POLICY, QUANTITIES, TOTAL, Amount, recompute
from align.referee.update import Update, in_bfloat16
from dumps.store.run_data import RunData

_LOGGED = (POLICY, KL, TOTAL)  # verl averages fractions over micro-batches whatever their tokens


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What one or more updates of a step report.

    Args:
        updates: all of one step; what they report is the mean over them.
        values: by metric.
        resolution: the smallest difference a metric's printed form shows; 0 where it is not named.
    """

    updates: tuple[Update, ...]
    values: Mapping[str, float]
    resolution: Mapping[str, float]

    def in_bfloat16(self) -> Report | None:
        """Return the report with updates in bfloat16; None unless all were."""
        narrow = [in_bfloat16(update) for update in self.updates]
        updates = tuple(update for update in narrow if update is not None)
        return replace(self, updates=updates) if len(updates) == len(narrow) else None

    @property
    def step(self) -> int:
        """Training step, from 1."""
        return self.updates[0].step

    @property
    def source(self) -> Path:
        """File of the first update."""
        return self.updates[0].source

    @property
    def place(self) -> Text:
        """Say which updates these are."""
        number = self.updates[0].number
        if len(self.updates) > 1:
            count = len(self.updates)
            return Text(f"mean of {count} updates", f"{count} 次更新的平均")
        return Text(f"update {number}", f"第 {number} 次更新")

    def meets(self, name: str, amount: Amount) -> bool:
        """Whether a reported value is an amount to rounding."""
        return amount.is_met_by(self.values[name], self.resolution.get(name, 0.0))

    def amounts(self, objective: Objective) -> dict[str, Amount]:
        """Return what an objective gives, of the numbers reported."""
        found = [recompute(update, objective) for update in self.updates]
        names = [n for n in QUANTITIES if n in self.values and all(n in each for each in found)]
        return {name: _mean([each[name] for each in found]) for name in names}


def reports_of(updates: Iterable[Update], run: RunData) -> Iterator[Report]:
    """Yield every update's own report, and what the log adds to those of a step."""
    for step, group in groupby(updates, lambda update: update.step):
        of_step = tuple(group)
        yield from (Report((u,), u.reported, u.resolution) for u in of_step if u.reported)
        values, resolution = logged_losses(run, step)
        own = set().union(*(update.reported for update in of_step))
        lacking = {name: value for name, value in values.items() if name not in own}
        if lacking:
            yield Report(of_step, lacking, resolution)


def logged_losses(run: RunData, step: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the losses logged at a step, and the resolution of their printed form."""
    values, resolution = {}, {}
    own = {series.name: series for series in run.metrics.series}  # a spelling can mean another
    # TRL logs the mean of the micro-batches' KL, whatever their tokens
    for name in (POLICY, TOTAL) if run.framework == "trl" else _LOGGED:
        series = own.get(name)
        if series is not None and step in series.steps.tolist():
            at = series.steps.tolist().index(step)
            values[name] = float(series.values[at])
            resolution[name] = float(series.resolution[at])
    return values, resolution


def _mean(amounts: Sequence[Amount]) -> Amount:
    count = len(amounts)
    return Amount(
        sum(amount.value for amount in amounts) / count,
        sum(amount.rounding for amount in amounts) / count,
    )
