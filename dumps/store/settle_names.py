"""Names that no spelling decides, only the values of a run, or what stands beside them.

verl's V1 trainer measures ``clip_ratio`` against the batch's own maximum, V0 against the limit.
MindSpeed-RL to 2.1.0 logs the reward after normalising it within its group, later versions the
reward itself, both as ``grpo/score/*``; and it logs an entropy of 0 where it computes none. Its
module says which metrics these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from align.core.metric import MetricLog, MetricSeries
from align.frameworks.registry import frameworks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_ZERO = 5e-4
"""Greatest mean of a normalised reward: it is 0 but for rounding, printed with 4 decimals."""


def settle_names(log: MetricLog) -> MetricLog:
    """Rename what the values show to be another quantity, drop what they show to be none."""
    module = frameworks().get(log.framework or "")
    if module is None:
        return log
    return _without_zeros(_with_normalised(_with_variants(log, module), module), module)


def _with_variants(log: MetricLog, module: ModuleType) -> MetricLog:
    """Rename the metrics that have another formula where a telling metric stands beside them."""
    variants: Mapping[str, Mapping[str, str]] = getattr(module, "METRIC_VARIANTS", {})
    spellings = {series.spelling for series in log.series}
    for marker, names in variants.items():
        if marker in spellings:
            series = (replace(s, name=names.get(s.name, s.name)) for s in log.series)
            log = replace(log, series=tuple(series))
    return log


def _with_normalised(log: MetricLog, module: ModuleType) -> MetricLog:
    marker: str | None = getattr(module, "METRIC_NORMALISED_BESIDE", None)
    families: Mapping[str, str] = getattr(module, "METRIC_NORMALISED", {})
    if marker not in {series.spelling for series in log.series}:
        return log
    renamed = {old: new for old, new in families.items() if _is_normalised(log, old)}
    series = [_renamed(s, renamed) for s in log.series]
    notes = [
        f"{old}/* is 0 on average at every step while rewards are not: it was normalised within "
        f"each group, so it is called {new}/* and not compared with {old}/*"
        for old, new in renamed.items()
    ]
    return replace(log, series=tuple(series), notes=(*log.notes, *notes))


def _is_normalised(log: MetricLog, family: str) -> bool:
    """Whether a reward averages to 0 at every step although some response got another reward."""
    mean = log.get(f"{family}/mean")
    if mean is None or not _is_zero(mean.values, _ZERO):
        return False
    samples = [s for s in log.series if s.name in (f"{family}/max", f"{family}/min")]
    verifiers = [s for s in log.series if s.name.endswith("_rewards/mean")]
    return any(not _is_zero(s.values, _ZERO) for s in (*samples, *verifiers))


def _renamed(series: MetricSeries, families: Mapping[str, str]) -> MetricSeries:
    family, _, statistic = series.name.rpartition("/")
    new = families.get(family)
    return series if new is None else replace(series, name=f"{new}/{statistic}")


def _without_zeros(log: MetricLog, module: ModuleType) -> MetricLog:
    reasons: Mapping[str, str] = getattr(module, "METRIC_ABSENT_WHEN_ZERO", {})
    absent = [s for s in log.series if s.name in reasons and _is_zero(s.values, 0.0)]
    notes = [f"{s.name} {reasons[s.name]}: its {len(s)} zeros are left out" for s in absent]
    return replace(log, series=_others(log.series, absent), notes=(*log.notes, *notes))


def _others(
    series: Sequence[MetricSeries], absent: Sequence[MetricSeries]
) -> tuple[MetricSeries, ...]:
    return tuple(s for s in series if not any(s is gone for gone in absent))


def _is_zero(values: npt.NDArray[np.float64], tolerance: float) -> bool:
    import numpy as np

    return bool(len(values)) and bool(np.all(np.abs(values) <= tolerance))
