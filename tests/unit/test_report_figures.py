"""Curves as SVG: small, deterministic, silent about nothing that is not finite."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from align.core.figure import Curve, CurvePair
from align.core.text import Text
from reports.figures import difference, draw
from tests.example_report import long_report


def test_each_figure_of_500_steps_is_below_40_kb_and_well_formed() -> None:
    for drawing in draw(long_report().rungs[13].curves):
        assert len(drawing.svg.encode()) < 40_000
        ElementTree.fromstring(drawing.svg)
        assert "#0000a" not in drawing.svg and "font-family" not in drawing.svg


def test_a_figure_does_not_depend_on_the_one_before_it() -> None:
    curves = long_report().rungs[13].curves
    empty = CurvePair("m", Curve((), (), ()), Curve((), (), ()), 1, Text("", ""))
    spiky = curves[5]
    alone = next(iter(draw([curves[0]]))).svg
    after = list(draw([empty, spiky, curves[0]]))[2].svg
    assert after.replace('"c2', '"c0').replace("#c2", "#c0") == alone
    assert next(iter(draw([spiky]))).log_scale and not next(iter(draw([empty]))).log_scale


def test_values_that_are_not_finite_are_counted_and_marked_not_drawn() -> None:
    values = (1.0, math.nan, math.inf, 4.0, -math.inf, 1e300)
    smoothed = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    steps = tuple(range(1, 7))
    pair = CurvePair(
        "m", Curve(steps, smoothed, smoothed), Curve(steps, values, smoothed), 1, Text("", "")
    )
    clean = CurvePair("m", pair.reference, pair.reference, 1, Text("", ""))
    (marked,), (unmarked,) = list(draw([pair])), list(draw([clean]))
    assert (marked.num_gaps, unmarked.num_gaps) == (4, 0)
    assert marked.svg.count("<use") == 2 + 2  # two gaps begin; steps 1 and 4 stand alone
    assert unmarked.svg.count("<use") == 0


def test_the_difference_is_taken_at_common_steps_alone() -> None:
    reference = Curve((1, 3, 5), (0.0, 0.0, 0.0), (1.0, 2.0, 3.0))
    candidate = Curve((3, 4, 5), (0.0, 0.0, 0.0), (2.5, 9.0, 2.0))
    steps, values = difference(CurvePair("m", reference, candidate, 1, Text("", "")))
    assert steps.tolist() == [3, 5] and values.tolist() == [0.5, -1.0]


@settings(max_examples=30)
@given(st.lists(st.floats(), max_size=8), st.lists(st.floats(), max_size=8))
def test_any_floats_give_a_figure(reference: list[float], candidate: list[float]) -> None:
    left, right = (Curve(tuple(range(len(v))), tuple(v), tuple(v)) for v in (reference, candidate))
    (drawing,) = draw([CurvePair("m", left, right, 1, Text("", ""))])
    ElementTree.fromstring(drawing.svg)
    assert "nan" not in drawing.svg.lower() and "inf" not in drawing.svg.lower()


def test_a_spike_survives_in_a_curve_too_long_to_draw_whole() -> None:
    values = np.zeros(20_000)
    values[7_777] = 50.0
    curve = Curve(tuple(range(20_000)), tuple(values), tuple(values))
    flat = Curve(curve.steps, (0.0,) * 20_000, (0.0,) * 20_000)
    (spiked,) = draw([CurvePair("m", flat, curve, 1, Text("", ""))])
    (calm,) = draw([CurvePair("m", flat, flat, 1, Text("", ""))])
    assert len(spiked.svg) < 60_000
    assert _highest(spiked.svg) < 30 < _highest(calm.svg)


def _highest(svg: str) -> float:
    """Return the least y, which is the highest point, of the candidate's lines."""
    lines = re.findall(r' d="([^"]*)" style="fill: none;[^"]*var\(--candidate\)', svg)
    return min(float(y) for line in lines for y in re.findall(r"[\d.]+ ([\d.]+)", line))
