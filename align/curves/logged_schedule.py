"""One run's logged learning rate beside the schedule its configuration declares.

A log does not tell whether it read the rate before or after stepping the scheduler (verl has done
both), or averaged it over a step's updates, so a logged rate is right where it lies between the
two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.core.finding import Side
from align.core.metric import MetricSeries
from align.core.text import Text
from align.curves.pair import FLOAT32_EPSILON, BoolArray, FloatArray, IntArray
from align.frameworks.declared_schedule import DeclaredSchedule
from dumps.store.run_data import RunData

METRIC = "actor/lr"


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSchedule:
    """One run's logged rates beside what its configuration declares.

    Args:
        series: as logged, finite values alone.
        declared: its schedule.
        least, greatest: float64 [n], the declared rates from before to after each logged step.
        tolerance: float64 [n], what printing and float32 hide.
    """

    side: Side
    series: MetricSeries
    declared: DeclaredSchedule
    least: FloatArray
    greatest: FloatArray
    tolerance: FloatArray

    @property
    def departs(self) -> BoolArray:
        """bool [n]: the logged rate is not the declared one."""
        low, high = self.least - self.tolerance, self.greatest + self.tolerance
        departs: BoolArray = (self.series.values < low) | (self.series.values > high)
        return departs

    @property
    def follows(self) -> bool:
        """Whether every logged rate is the declared one."""
        return not self.departs.any()


def logged_rates(run: RunData) -> MetricSeries | None:
    """Return the rates a run logged, finite ones alone; None without any."""
    series = run.metrics.get(METRIC)
    if series is None or not (finite := np.isfinite(series.values)).any():
        return None
    arrays = (series.steps, series.values, series.resolution, series.lines)
    kept = (array[finite] for array in arrays)
    return MetricSeries(series.name, series.spelling, series.source, *kept)


def read_as_declared(
    side: Side, series: MetricSeries, declared: DeclaredSchedule
) -> LoggedSchedule:
    """Lay a schedule beside the logged rates."""
    rates = np.array([declared.during(step) for step in _training_steps(series)], np.float64)
    tolerance = np.maximum(series.resolution, FLOAT32_EPSILON * declared.lr)
    return LoggedSchedule(side, series, declared, rates[:, 0], rates[:, 1], tolerance)


def declared_rates(declared: DeclaredSchedule, steps: IntArray) -> FloatArray:
    """float64 [n]: the declared rate after so many training steps."""
    return np.array([declared.after(int(step)) for step in steps], np.float64)


def what_it_does(run: LoggedSchedule) -> Text | None:
    """Say what schedule a run that leaves its own follows instead, None where that is not clear."""
    return _constant(run) or _advanced(run) or _stretched(run) or _zero_at_the_end(run)


def _constant(run: LoggedSchedule) -> Text | None:
    values, style = run.series.values, run.declared.style
    moves = bool((np.ptp(run.least) > run.tolerance).any())
    if not moves or len(values) < 2 or (np.abs(values - values[0]) > run.tolerance).any():
        return None
    if style == "constant":
        return Text(
            f"declared a warmup over {run.declared.warmup:g} steps, observed constant "
            f"{values[0]:.6g}",
            f"声明预热 {run.declared.warmup:g} 步，实际恒为 {values[0]:.6g}",
        )
    return Text(
        f"declared {style}, observed constant {values[0]:.6g}",
        f"声明为 {style}，实际恒为 {values[0]:.6g}",
    )


def _advanced(run: LoggedSchedule) -> Text | None:
    """Recognise a scheduler that every optimizer step advances."""
    updates = run.declared.updates
    if updates is None or updates < 2:
        return None
    counted = declared_rates(run.declared, run.series.steps * updates)
    if (np.abs(run.series.values - counted) > run.tolerance).any():
        return None
    return Text(
        f"the declared schedule advanced {updates} times a training step, once an optimizer step",
        f"所声明的曲线在每个训练步推进 {updates} 次（每次优化器更新推进一次）",
    )


def _stretched(run: LoggedSchedule) -> Text | None:
    """Recognise a decay that ends elsewhere: twice as late, or the warmup counted twice."""
    declared = run.declared
    total, warmup = declared.total, round(declared.warmup)
    if total is None or declared.decay is None:
        return None
    factor = declared.updates or 1
    lengths = (2 * total, total // 2, total - warmup, total + warmup)
    for other in dict.fromkeys((*lengths, total * factor, total // factor)):
        rate = declared.over(other) if other > warmup and other != total else None
        if rate is not None and _fits(run, rate):
            return Text(
                f"declared {declared.style} over {total} steps, decays over {other}",
                f"声明 {declared.style} 覆盖 {total} 步，实际在 {other} 步内衰减",
            )
    return None


def _fits(run: LoggedSchedule, rate: object) -> bool:
    assert callable(rate)
    ends = np.array([(rate(n - 1), rate(n)) for n in _training_steps(run.series)], np.float64)
    values, tolerance = run.series.values, run.tolerance
    inside = (values >= ends.min(axis=1) - tolerance) & (values <= ends.max(axis=1) + tolerance)
    return bool(inside.all())


def _zero_at_the_end(run: LoggedSchedule) -> Text | None:
    values = run.series.values
    nonzero = np.flatnonzero(np.abs(values) > run.series.resolution)
    count = len(values) - (int(nonzero[-1]) + 1 if len(nonzero) else 0)
    if count < 2:
        return None
    return Text(
        f"the rate is 0 for the last {count} of {len(values)} logged steps",
        f"所记录的 {len(values)} 步中，最后 {count} 步的学习率为 0",
    )


def _training_steps(series: MetricSeries) -> list[int]:
    """Return the logged steps counted from 1."""
    offset = 1 if int(series.steps[0]) == 0 else 0
    return [int(step) + offset for step in series.steps]
