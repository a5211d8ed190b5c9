"""One class for each metric, with its onset: what the report's table of metrics says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from align.core.finding import Side
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.amplitude import Amplitude
from align.curves.collapse import Collapse
from align.curves.constant import MIN_STUCK_STEPS, Stuck, num_stuck
from align.curves.curve_class import CurveClass
from align.curves.definition import Redefined
from align.curves.diverge import is_testable
from align.curves.nonfinite import FirstNonfinite
from align.curves.onset import Onset
from align.curves.pair import PairedMetric, Pairing, is_exact
from align.curves.permutation import is_permuted
from align.curves.shape import Shape, shape_of
from align.curves.shift import LARGE_FACTOR, Shift, difference_of
from align.curves.smooth import window_for
from align.curves.spikes import Spikes
from align.frameworks.vocabulary import MetricKind

AT_BOUND = Threshold(0.95, source="nineteen of twenty responses at the bound leave nothing to move")
OFF_BOUND = Threshold(0.8, source="one response in five away from the bound still moves the mean")
_LENGTH, _LONGEST = "response_length/mean", "response_length/max"


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """What one metric does.

    Args:
        onset: first step at which the curves are apart; None where no step is named.
        shape: of a lasting difference, else None.
        detail: size and side, in words.
    """

    metric: PairedMetric
    kind: CurveClass
    onset: Onset | None
    shape: Shape | None
    detail: Text


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Everything the tests of the curves found."""

    pairing: Pairing
    shifts: Sequence[Shift]
    collapses: Sequence[Collapse]
    nonfinite: Sequence[FirstNonfinite]
    redefined: Sequence[Redefined]
    permuted: Sequence[PairedMetric]
    stuck: Sequence[Stuck]
    spikes: Sequence[Spikes]
    amplitudes: Sequence[Amplitude]
    magnitudes: Mapping[str, int]  # metric name -> first step


def classify(found: Found) -> tuple[Classified, ...]:
    """Name every metric of training by the first class of `CurveClass` that holds for it."""
    return tuple(_classified(metric, found) for metric in found.pairing.training)


def _classified(metric: PairedMetric, found: Found) -> Classified:
    name = metric.name
    for kind, onset, detail in _special(metric, found):
        return Classified(metric, kind, onset, None, detail)
    shift = next((s for s in found.shifts if s.metric.name == name), None)
    if shift is not None:
        return _of_shift(metric, shift, found.pairing)
    differs = metric.differs()
    first = Onset(int(metric.steps[int(np.argmax(differs))]), 0) if differs.any() else None
    if is_exact(name) and first is not None:
        detail = Text(f"{int(differs.sum())} of {len(metric)} steps", f"{int(differs.sum())} 步")
        return Classified(metric, CurveClass.DIFFERS, first, None, detail)
    for spikes in (s for s in found.spikes if s.metric.name == name):
        counts = int(spikes.reference.sum()), int(spikes.candidate.sum())
        detail = Text(f"{counts[0]} → {counts[1]} steps", f"{counts[0]} → {counts[1]} 步")
        return Classified(metric, CurveClass.SPIKES, Onset(spikes.first_step, 0), None, detail)
    for swing in (a for a in found.amplitudes if a.metric.name == name):
        return Classified(metric, CurveClass.AMPLITUDE, None, None, _times(swing.ratio))
    if first is None:
        return Classified(metric, CurveClass.EQUAL, None, None, _NOTHING)
    kind = CurveClass.WITHIN_NOISE if is_testable(metric) else CurveClass.NOT_JUDGED
    return Classified(metric, kind, None, None, _NOTHING)


def _special(metric: PairedMetric, found: Found) -> list[tuple[CurveClass, Onset | None, Text]]:
    """Return the classes that stand before a shift, first come first."""
    name = metric.name
    classes: list[tuple[CurveClass, Onset | None, Text]] = []
    for event in (e for e in found.nonfinite if e.series.name == name):
        classes.append((CurveClass.NONFINITE, Onset(event.step, 0), _SIDES[event.side]))
    for collapse in (c for c in found.collapses if c.metric.name == name):
        fall = collapse.candidate if collapse.side is Side.CANDIDATE else collapse.reference
        side = _SIDES[collapse.side]
        detail = Text(f"{side.en} -{fall.share:.0%}", f"{side.zh} -{fall.share:.0%}")
        classes.append((CurveClass.COLLAPSE, collapse.onset, detail))
    for redefined in (r for r in found.redefined if r.metric.name == name):
        detail = Text(redefined.rule.name, redefined.rule.name)
        classes.append((CurveClass.DEFINITION, _first(metric), detail))
    if any(m.name == name for m in found.permuted) or (is_exact(name) and is_permuted(metric)):
        classes.append((CurveClass.PERMUTATION, _first(metric), _NOTHING))
    if name in found.magnitudes:
        classes.append((CurveClass.MAGNITUDE, Onset(found.magnitudes[name], 0), _NOTHING))
    for stuck in (s for s in found.stuck if s.metric.name == name):
        kind = CurveClass.NOT_COMPUTED if stuck.never_computed else CurveClass.SATURATION
        classes.append((kind, Onset(stuck.step, 0), _SIDES[Side(stuck.side)]))
    return classes


def _of_shift(metric: PairedMetric, shift: Shift, pairing: Pairing) -> Classified:
    relative = "" if shift.relative != shift.relative else f"{shift.relative:+.1%}"
    shape = shape_of(difference_of(shift.metric))
    bound = _at_bound(metric, shift, pairing)
    if bound is not None:
        return Classified(metric, CurveClass.SATURATION, shift.onset, shape, _SIDES[bound])
    if shift.ratio is not None and shift.constant_ratio and shift.factor >= LARGE_FACTOR.value:
        return Classified(
            metric, CurveClass.CONSTANT_RATIO, shift.onset, shape, _times(shift.ratio)
        )
    return Classified(metric, shape.kind, shift.onset, shape, Text(relative, relative))


def _at_bound(metric: PairedMetric, shift: Shift, pairing: Pairing) -> Side | None:
    """Return the side that a shift took to its bound: a share of 1, or the longest response."""
    window = window_for(len(shift.metric))
    shares = [float(v[-window:].mean()) for v in (shift.metric.reference, shift.metric.candidate)]
    if metric.name == _LENGTH:
        longest = pairing.get(_LONGEST)
        if longest is None:
            return None
        for k, values in enumerate((longest.reference, longest.candidate)):
            capped = num_stuck(values) >= MIN_STUCK_STEPS.value and values[-1] > 0
            shares[k] = shares[k] / float(values[-1]) if capped else 0.0
    elif metric.meaning.kind is not MetricKind.BOUNDED:
        return None
    for side, ours, theirs in (
        (Side.CANDIDATE, shares[1], shares[0]),
        (Side.REFERENCE, shares[0], shares[1]),
    ):
        if ours >= AT_BOUND.value and theirs <= OFF_BOUND.value:
            return side
    return None


def _first(metric: PairedMetric) -> Onset | None:
    differs = metric.differs()
    return Onset(int(metric.steps[int(np.argmax(differs))]), 0) if differs.any() else None


def _times(ratio: float) -> Text:
    return Text(f"× {ratio:.3g}", f"× {ratio:.3g}")


_NOTHING = Text("", "")
_SIDES = {
    Side.REFERENCE: Text("reference", "参考"),
    Side.CANDIDATE: Text("candidate", "被测"),
}
