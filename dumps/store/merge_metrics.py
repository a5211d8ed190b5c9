"""Several metric files of one run, such as console log, JSON lines and TensorBoard, made one.

Of two values for one metric and step the more completely written one counts, and of two equally
complete ones that of the later file: a restarted run repeats steps. Where they differ by more
than their writing can explain, that is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from align.core.metric import MetricLog, MetricSeries
from align.frameworks.vocabulary import metric_name
from dumps.store.settle_names import settle_names

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MAX_SKIPPED = 100


@dataclass(frozen=True, slots=True)
class _Disagreement:
    """Values of one metric that differ between files, and the first of them."""

    metric: str
    count: int
    step: int
    kept: float
    kept_in: str
    other: float
    other_in: str


def merge_logs(logs: Sequence[MetricLog]) -> MetricLog:
    """Merge the metric files of one run, given in the order in which they were written.

    Every series keeps the spelling and source that most of its values come from; a value from
    another source has line 0. No file at all gives an empty log.
    """
    frameworks = {log.framework for log in logs} - {None}
    framework = frameworks.pop() if len(frameworks) == 1 else None
    by_name: dict[str, list[MetricSeries]] = {}
    for log in logs:
        for series in log.series:
            named = _named(series, log.framework, framework)
            by_name.setdefault(named.name, []).append(named)
    disagreements: list[_Disagreement] = []
    merged = [_merge(series, disagreements) for series in by_name.values()]
    return settle_names(_whole(logs, framework, merged, disagreements))


def _named(series: MetricSeries, own: str | None, of_run: str | None) -> MetricSeries:
    """Name a series by the run's framework, where its own file did not tell one."""
    if own is not None or of_run is None:
        return series
    return replace(series, name=metric_name(of_run, series.spelling))


def _merge(parts: Sequence[MetricSeries], disagreements: list[_Disagreement]) -> MetricSeries:
    if len(parts) == 1:
        return parts[0]
    import numpy as np

    steps, values, resolution, lines = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("steps", "values", "resolution", "lines")
    )
    part = np.repeat(np.arange(len(parts)), [len(series) for series in parts])
    best_first = np.lexsort((-part, resolution, steps))
    is_best = np.append(True, np.diff(steps[best_first]) > 0)[: len(steps)]
    kept = best_first[is_best]
    if len(kept) < len(steps):
        _compare(parts, part, best_first, is_best, disagreements)
    main = parts[int(np.bincount(part[kept], minlength=len(parts)).argmax())]
    is_main = np.array([series.source == main.source for series in parts])[part[kept]]
    return replace(
        main,
        steps=steps[kept],
        values=values[kept],
        resolution=resolution[kept],
        lines=np.where(is_main, lines[kept], 0),
    )


def _compare(
    parts: Sequence[MetricSeries],
    part: npt.NDArray[np.intp],
    best_first: npt.NDArray[np.intp],
    is_best: npt.NDArray[np.bool_],
    disagreements: list[_Disagreement],
) -> None:
    """Compare every value that was not kept with the one that was."""
    import numpy as np

    values = np.concatenate([series.values for series in parts])
    resolution = np.concatenate([series.resolution for series in parts])
    steps = np.concatenate([series.steps for series in parts])
    winners = best_first[is_best][np.cumsum(is_best) - 1][~is_best]
    losers = best_first[~is_best]
    a, b = values[winners], values[losers]
    tolerance = np.maximum(resolution[winners], resolution[losers])
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        differs = np.flatnonzero(~same & ~(np.abs(a - b) <= tolerance))
    if not len(differs):
        return
    first = differs[0]
    disagreements.append(
        _Disagreement(
            metric=parts[0].name,
            count=len(differs),
            step=int(steps[losers[first]]),
            kept=float(a[first]),
            kept_in=parts[part[winners[first]]].source,
            other=float(b[first]),
            other_in=parts[part[losers[first]]].source,
        )
    )


def _whole(
    logs: Sequence[MetricLog],
    framework: str | None,
    series: Sequence[MetricSeries],
    disagreements: Sequence[_Disagreement],
) -> MetricLog:
    """Sum up the files' own counts and remarks."""
    alone = len(logs) == 1
    with_lines = [log for log in logs if log.num_metric_lines]
    notes = [note if alone else f"{log.source}: {note}" for log in logs for note in log.notes]
    found = sorted({log.framework for log in logs if log.framework})
    if len(found) > 1:
        notes.append(f"the files of this run come from several frameworks: {', '.join(found)}")
    if disagreements:
        notes.append(_describe(disagreements))
    return MetricLog(
        source=logs[0].source if alone else f"{len(logs)} metric files",
        format=logs[0].format if alone else "merged",
        framework=framework,
        series=tuple(series),
        num_lines=sum(log.num_lines for log in logs),
        num_metric_lines=sum(log.num_metric_lines for log in logs),
        min_keys_per_line=min((log.min_keys_per_line for log in with_lines), default=0),
        max_keys_per_line=max((log.max_keys_per_line for log in with_lines), default=0),
        num_overwritten=sum(log.num_overwritten for log in logs),
        skipped=tuple(place for log in logs for place in log.skipped)[:_MAX_SKIPPED],
        num_skipped=sum(log.num_skipped for log in logs),
        last_error=next((log.last_error for log in reversed(logs) if log.last_error), None),
        notes=tuple(notes),
    )


def _describe(disagreements: Sequence[_Disagreement]) -> str:
    count = sum(d.count for d in disagreements)
    d = max(disagreements, key=lambda d: d.count)
    return (
        f"{count} values of {len(disagreements)} metrics differ between files of this run, "
        f"for example {d.metric} at step {d.step}: {d.kept:.9g} in {d.kept_in} (used), "
        f"{d.other:.9g} in {d.other_in}"
    )
