"""Runs for the doctor's tests, made of plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from align.config.derive import derive
from align.config.lint import OneRun
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.core.environment import EnvironmentFact
from align.core.finding import Evidence, Side
from align.core.metric import MetricLog, MetricSeries

_PLACE = Provenance(ProvenanceKind.FILE, "config.yaml", 1)


def one_run_with(
    values: Mapping[str, ConfigLeaf] | None = None,
    *,
    framework: str | None = "verl",
    stated: Mapping[str, ConfigLeaf] | None = None,
    facts: Mapping[str, str] | None = None,
) -> OneRun:
    """Return a run that sets these fields and keys and states these facts."""
    known = {
        name: EffectiveValue(name, value, ConfigValue(name, value, _PLACE))
        for name, value in (values or {}).items()
    }
    return OneRun(
        EffectiveConfig(framework, None, known | derive(known)),
        {key: ConfigValue(key, value, _PLACE) for key, value in (stated or {}).items()},
        facts={
            name: EnvironmentFact(name, value, Evidence("run.log", Side.BOTH, 1, name))
            for name, value in (facts or {}).items()
        },
    )


def log_of(metrics: Mapping[str, Sequence[float]], first_step: int = 1) -> MetricLog:
    """Return a log of complete series."""
    series = []
    for name, values in metrics.items():
        steps = np.arange(first_step, first_step + len(values), dtype=np.int64)
        array = np.array(values, np.float64)
        zeros = np.zeros(len(values))
        lines = steps.copy()
        series.append(MetricSeries(name, name, "run.log", steps, array, zeros, lines))
    return MetricLog("run.log", "test", "verl", tuple(series))
