"""Align two runs by samples, tokens or hours instead of by step number."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np

from align.core.errors import RunError
from align.core.metric import MetricLog, MetricSeries
from align.core.text import Text
from align.curves.pair import FloatArray, IntArray, is_exact
from align.frameworks.vocabulary import metric_meaning

TOKENS, STEP_TIME = "perf/total_num_tokens", "timing_s/step"


class Axis(str, Enum):
    """What both runs are compared at equal values of."""

    STEP = "step"
    SAMPLES = "samples"
    TOKENS = "tokens"
    HOURS = "hours"

    @property
    def words(self) -> Text:
        """Name the axis for readers."""
        return _WORDS[self]


def at_equal(axis: Axis) -> Text:
    """Say along what both runs are judged, as a clause; nothing for steps."""
    if axis is Axis.STEP:
        return Text("", "")
    return Text(
        f" at equal {axis.value} (steps of the reference)", f"按{axis.words.zh}对齐，步为参考的步；"
    )


def realigned(reference: MetricLog, candidate: MetricLog, axis: Axis) -> MetricLog:
    """Return the candidate's metrics on the reference's steps, at equal progress along ``axis``.

    Between two of its steps the candidate's value is the later one's: each reference step gets the
    mean over the stretch of the axis it covers, so totals are kept. Quantities that follow from
    configuration and data step by step, and what is not of training, are left out.

    Raises:
        RunError: A side does not record what the axis is made of.
    """
    ours, theirs = progress(reference, axis, "reference"), progress(candidate, axis, "candidate")
    series = (_resampled(s, ours, theirs) for s in candidate.series if _can_move(s.name))
    return replace(candidate, series=tuple(s for s in series if len(s)))


def kept(reference: MetricLog) -> MetricLog:
    """Return the reference without what `realigned` leaves out of the candidate."""
    return replace(reference, series=tuple(s for s in reference.series if _can_move(s.name)))


def progress(log: MetricLog, axis: Axis, side: str) -> tuple[IntArray, FloatArray]:
    """Return a run's steps [n] and how far along ``axis`` it is after each [n].

    Tokens are summed up, hours are step times summed up, samples are tokens over the mean length
    of prompt and response. A step the log lacks counts like the mean of the others.

    Raises:
        RunError: The log has no such metric.
    """
    names = {
        Axis.TOKENS: (TOKENS,),
        Axis.HOURS: (STEP_TIME,),
        Axis.SAMPLES: (TOKENS, "prompt_length/mean", "response_length/mean"),
    }[axis]
    parts = [log.get(name) for name in names]
    if any(part is None or not len(part) for part in parts):
        lacking = ", ".join(n for n, p in zip(names, parts, strict=True) if p is None or not len(p))
        raise RunError(
            where=f"{side} {log.source}",
            problem=f"does not record {lacking}, so it cannot be aligned by {axis.value}",
            fix="compare by step (--x step), or give a log that records it",
        )
    found = [part for part in parts if part is not None]
    steps = found[0].steps
    for part in found[1:]:
        steps = np.intersect1d(steps, part.steps)
    columns = [part.values[np.searchsorted(part.steps, steps)] for part in found]
    each = columns[0]
    if axis is Axis.SAMPLES:
        each = columns[0] / (columns[1] + columns[2])
    if axis is Axis.HOURS:
        each = each / 3600
    mean = float(np.nanmean(each))
    every = np.arange(int(steps[0]), int(steps[-1]) + 1)
    filled = np.full(len(every), mean)
    filled[steps - steps[0]] = np.where(np.isfinite(each), each, mean)
    return every, np.cumsum(filled)


def _can_move(name: str) -> bool:
    return metric_meaning(name).numeric and not is_exact(name)


def _resampled(
    series: MetricSeries, ours: tuple[IntArray, FloatArray], theirs: tuple[IntArray, FloatArray]
) -> MetricSeries:
    """Average a series over what each reference step covers."""
    usable = np.isin(series.steps, theirs[0])
    steps, values = series.steps[usable], series.values[usable]
    if not len(steps):
        return replace(series, steps=steps, values=values, resolution=values, lines=steps)
    ends = theirs[1][np.searchsorted(theirs[0], steps)]
    begins = np.concatenate([[ends[0] - _width(theirs, steps)], ends[:-1]])
    whole = np.concatenate([[0.0], np.cumsum(values * (ends - begins))])
    knots = np.concatenate([[begins[0]], ends])
    to = ours[1]
    since = np.concatenate([[to[0] - _width(ours, ours[0])], to[:-1]])
    inside = (since >= knots[0] - 1e-9) & (to <= knots[-1] + 1e-9) & (to > since)
    to, since = to[inside], since[inside]
    means = (np.interp(to, knots, whole) - np.interp(since, knots, whole)) / (to - since)
    nearest = np.minimum(np.searchsorted(ends, to), len(steps) - 1)
    lines = series.lines[usable][nearest]
    resolution = series.resolution[usable][nearest]
    return replace(series, steps=ours[0][inside], values=means, resolution=resolution, lines=lines)


def _width(run: tuple[IntArray, FloatArray], steps: IntArray) -> float:
    """Return how far the first of ``steps`` moves along the axis."""
    at = int(np.searchsorted(run[0], steps[0]))
    return float(run[1][at] - (run[1][at - 1] if at else 0.0))


_WORDS = {
    Axis.STEP: Text("step", "步号"),
    Axis.SAMPLES: Text("samples", "样本数"),
    Axis.TOKENS: Text("tokens", "token 数"),
    Axis.HOURS: Text("hours", "小时数"),
}
