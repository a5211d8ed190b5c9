"""Pair two runs' metrics by vocabulary name and by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.finding import Evidence, Side, Symptom
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.vocabulary import MetricKind, MetricMeaning, metric_meaning

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

FLOAT32_EPSILON = 2.0**-23  # TensorBoard stores float32: equal values may differ by this much


@dataclass(frozen=True, slots=True, eq=False)
class PairedMetric:
    """One metric at the steps both runs recorded it.

    Args:
        steps: int64 [n], as the reference numbers them.
        reference, candidate: float64 [n]; NaN and infinities as recorded.
        resolution: float64 [n]; differences up to here may come from printing alone.
        shift: added to the candidate's step numbers to give the reference's.
    """

    name: str
    meaning: MetricMeaning
    steps: IntArray
    reference: FloatArray
    candidate: FloatArray
    resolution: FloatArray
    reference_series: MetricSeries
    candidate_series: MetricSeries
    shift: int

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def finite(self) -> BoolArray:
        """bool [n]: both sides are numbers."""
        finite: BoolArray = np.isfinite(self.reference) & np.isfinite(self.candidate)
        return finite

    def finite_only(self) -> PairedMetric:
        """Return the pair at the steps where both sides are numbers."""
        return self if self.finite.all() else self.where(self.finite)

    def differs(self) -> BoolArray:
        """bool [n]: the values differ by more than printing; NaN equals NaN, inf equals inf."""
        equal = (self.reference == self.candidate) | (
            np.isnan(self.reference) & np.isnan(self.candidate)
        )
        size = np.maximum(np.abs(self.reference), np.abs(self.candidate))
        with np.errstate(invalid="ignore"):
            close = np.abs(self.candidate - self.reference) <= np.maximum(
                self.resolution, FLOAT32_EPSILON * np.where(np.isfinite(size), size, 0.0)
            )
        differs: BoolArray = ~(equal | close)
        return differs

    def evidence(self, step: int) -> tuple[Evidence, Evidence]:
        """Say where both runs recorded the value of ``step`` (reference numbering)."""
        return (
            value_evidence(self.reference_series, step, Side.REFERENCE),
            value_evidence(self.candidate_series, step - self.shift, Side.CANDIDATE),
        )

    def symptom(
        self, step: int, first_step: int, *, noise_sized: bool, uncertainty: int = 0
    ) -> Symptom:
        """Return this metric's divergence at ``step``, or up to ``uncertainty`` steps later."""
        return Symptom(self.name, self.meaning.rung, step, first_step, noise_sized, uncertainty)

    def where(self, mask: BoolArray) -> PairedMetric:
        """Return the pair at the steps of a mask [n]."""
        return PairedMetric(
            self.name,
            self.meaning,
            self.steps[mask],
            self.reference[mask],
            self.candidate[mask],
            self.resolution[mask],
            self.reference_series,
            self.candidate_series,
            self.shift,
        )


@dataclass(frozen=True, slots=True)
class StepShift:
    """The candidate's step numbers plus ``by`` are the reference's."""

    by: int
    why: Text


@dataclass(frozen=True, slots=True, eq=False)
class Pairing:
    """Every metric of two runs. ``metrics`` are sorted by name and have one common step or more.

    ``no_common_step`` names metrics that both runs have, at different steps.
    """

    metrics: tuple[PairedMetric, ...]
    reference_only: tuple[MetricSeries, ...]
    candidate_only: tuple[MetricSeries, ...]
    no_common_step: tuple[str, ...]
    step_shift: StepShift | None

    def get(self, name: str) -> PairedMetric | None:
        """Return the metric of this name."""
        return next((metric for metric in self.metrics if metric.name == name), None)

    @property
    def training(self) -> tuple[PairedMetric, ...]:
        """Metrics of training steps that can show a divergence."""
        return tuple(m for m in self.metrics if m.meaning.numeric and _of_training(m.name))

    @property
    def first_step(self) -> int:
        """First training step both runs recorded; validation may come before it."""
        return int(min((m.steps[0] for m in self.training or self.metrics), default=0))

    @property
    def num_steps(self) -> int:
        """Most steps that any training metric has on both sides."""
        return max((len(m) for m in self.training or self.metrics), default=0)


def pair_logs(reference: MetricLog, candidate: MetricLog) -> Pairing:
    """Pair by full name; a difference in step numbering is looked for first, and said."""
    ours = {series.name: series for series in reference.series if len(series)}
    theirs = {series.name: series for series in candidate.series if len(series)}
    shift = find_step_shift(ours, theirs)
    names = sorted(ours.keys() & theirs.keys())
    paired = [pair_series(ours[n], theirs[n], shift.by if shift else 0) for n in names]
    return Pairing(
        metrics=tuple(pair for pair in paired if len(pair)),
        reference_only=tuple(ours[n] for n in sorted(ours.keys() - theirs.keys())),
        candidate_only=tuple(theirs[n] for n in sorted(theirs.keys() - ours.keys())),
        no_common_step=tuple(pair.name for pair in paired if not len(pair)),
        step_shift=shift,
    )


def pair_series(reference: MetricSeries, candidate: MetricSeries, shift: int = 0) -> PairedMetric:
    """Pair one metric at common steps, after adding ``shift`` to the candidate's numbers."""
    steps, ours, theirs = np.intersect1d(
        reference.steps, candidate.steps + shift, assume_unique=True, return_indices=True
    )
    return PairedMetric(
        name=reference.name,
        meaning=metric_meaning(reference.name),
        steps=steps,
        reference=reference.values[ours],
        candidate=candidate.values[theirs],
        # Two values rounded to r lie within r/2 of the truth each.
        resolution=(reference.resolution[ours] + candidate.resolution[theirs]) / 2,
        reference_series=reference,
        candidate_series=candidate,
        shift=shift,
    )


def find_step_shift(
    reference: dict[str, MetricSeries], candidate: dict[str, MetricSeries]
) -> StepShift | None:
    """Find out whether one run counts training steps from 0 and the other from 1.

    Old verl numbers its first training step 0, MindSpeed-RL and later verl 1. Where both recorded
    quantities that follow from the data (prompt lengths), these must agree better shifted than
    not; where neither did, the numbering alone decides, and the text says so.
    """
    names = [
        name
        for name in sorted(reference.keys() & candidate.keys())
        if metric_meaning(name).numeric and _of_training(name)
    ]
    if not names:
        return None
    first = [min(int(side[n].steps[0]) for n in names) for side in (reference, candidate)]
    if sorted(first) != [0, 1]:
        return None
    by = first[0] - first[1]
    agreement = {s: _agreement(reference, candidate, names, s) for s in (0, by)}
    if np.isnan(agreement[by]):
        return StepShift(by, _ASSUMED)
    return StepShift(by, _CONFIRMED) if agreement[by] > agreement[0] else None


_ASSUMED = Text(
    "one run counts its training steps from 0, the other from 1; the first training steps are "
    "taken as the same step (no prompt lengths are recorded to confirm it)",
    "一次运行的训练步从 0 开始计数，另一次从 1 开始；此处把两侧的第一个训练步视为同一步"
    "（两侧没有都记录 prompt 长度，无法核实）",
)
_CONFIRMED = Text(
    "one run counts its training steps from 0, the other from 1; prompt lengths agree once the "
    "numbers are shifted by one",
    "一次运行的训练步从 0 开始计数，另一次从 1 开始；步号错开一位后，两侧的 prompt 长度一致",
)


def _agreement(
    reference: dict[str, MetricSeries],
    candidate: dict[str, MetricSeries],
    names: list[str],
    shift: int,
) -> float:
    """Return the share of equal values among quantities of the data, NaN where none varies."""
    pairs = [pair_series(reference[n], candidate[n], shift) for n in names if is_exact(n)]
    varying = [pair.differs() for pair in pairs if len(pair) and np.ptp(pair.reference) > 0]
    return 1 - float(np.concatenate(varying).mean()) if varying else np.nan


def is_exact(name: str) -> bool:
    """Tell whether a quantity follows from configuration and data alone, not from sampling."""
    meaning = metric_meaning(name)
    return meaning.kind is MetricKind.SCHEDULE or (
        meaning.rung is Rung.DATA and meaning.kind is not MetricKind.BOOKKEEPING
    )


def _of_training(name: str) -> bool:
    return metric_meaning(name).rung is not Rung.EVALS


def value_evidence(series: MetricSeries, step: int, side: Side) -> Evidence:
    """Point at the value of ``step`` in its file."""
    at = int(np.searchsorted(series.steps, step))
    if at >= len(series) or series.steps[at] != step:
        return Evidence(series.source, side, key=series.spelling)
    line = int(series.lines[at])
    return Evidence(
        series.source,
        side,
        line=line or None,
        key=series.spelling,
        values=(float(series.values[at]),),
    )
