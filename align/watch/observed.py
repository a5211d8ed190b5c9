"""The running job's metrics so far."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from align.core.metric import MetricLog, MetricSeries
from align.frameworks.vocabulary import identify_framework, metric_name
from align.watch.sources import News


class Observed:
    """Values by spelling and step.

    A job that was restarted writes steps again, with other values: what it wrote after them before
    does not belong to it any more. The same metric in a second format is left out: its digits
    differ, and would look like a restart.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[int, float]] = {}
        self._sources: dict[str, tuple[str, str]] = {}  # kind and file
        self._framework: str | None = None

    def add(self, news: Iterable[News]) -> int | None:
        """Take what a poll brought; return the first step that is new or new again."""
        changed: list[int] = []
        for item in news:
            self._framework = item.framework or self._framework
            for series in item.series:
                changed += self._put(item.kind, series)
        return min(changed, default=None)

    def log(self) -> MetricLog:
        """Return everything as one log."""
        framework = self._framework or identify_framework(self._values)
        series = tuple(
            self._series(framework, spelling, values) for spelling, values in self._values.items()
        )
        sources = sorted({file for _, file in self._sources.values()})
        return MetricLog(sources[0] if sources else "", "watch", framework, series)

    def _put(self, kind: str, series: MetricSeries) -> list[int]:
        known_kind, _ = self._sources.setdefault(series.spelling, (kind, series.source))
        if kind != known_kind:
            return []
        values = self._values.setdefault(series.spelling, {})
        fresh: list[int] = []
        # A step on an earlier line than a smaller step was written before a restart.
        last = np.maximum.accumulate(series.lines) <= series.lines
        steps, numbers = series.steps[last].tolist(), series.values[last].tolist()
        for step, value in zip(steps, numbers, strict=True):
            known = values.get(step)
            if known is not None and (known == value or (known != known and value != value)):
                continue
            if known is not None:
                for later in [s for s in values if s > step]:
                    del values[later]
            values[step] = value
            fresh.append(step)
        return fresh

    def _series(
        self, framework: str | None, spelling: str, values: dict[int, float]
    ) -> MetricSeries:
        steps = np.array(sorted(values), dtype=np.int64)
        zeros = np.zeros(len(steps))
        return MetricSeries(
            name=metric_name(framework, spelling),
            spelling=spelling,
            source=self._sources[spelling][1],
            steps=steps,
            values=np.array([values[step] for step in steps.tolist()], dtype=np.float64),
            resolution=zeros,
            lines=zeros.astype(np.int64),
        )
