"""Errors over depth: what a forward fault and its clean twin draw, and what a drawing survives."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from align.core.document import from_document, to_document
from align.core.figure import Grid, Point, Profile
from align.core.report import NextRun, Report
from align.core.text import LANGUAGES, Text
from align.ladder import climb
from reports import labels
from reports.grids import grids_of
from reports.profiles import BINS, depth_line, heat_map, neighbourhood
from reports.render import html, markdown
from tests.unit.layer_runs import recorded


def scaled_attention(model: Any) -> None:
    """Scale the scores of layer 1, which its o_proj takes in first."""
    model.model.layers[1].self_attn.scaling *= 1.05


@pytest.fixture(scope="module")
def reports_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    folder: Path = tmp_path_factory.mktemp("runs")
    own = recorded(folder / "own", steps=2)
    return {
        "fault": climb(own, recorded(folder / "fault", scaled_attention, steps=2)),
        "clean": climb(own, recorded(folder / "clean", side="left", steps=2)),
    }


def drawn(report: Report, lang: str = "en") -> str:
    """Return the page of a report that went through its JSON text."""
    return html.render(json.loads(json.dumps(to_document(report), allow_nan=False)), lang)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_forward_fault_is_marked_with_what_is_computed_around_it(
    reports_of: dict[str, Report], lang: str
) -> None:
    page = drawn(reports_of["fault"], lang)
    chain = page.partition('<ol class="chain">')[2].partition("</ol>")[0]
    places = re.findall(r'<li class="(\w+)(?: beyond)?">', chain)
    assert places == ["before"] * 3 + ["here"] + ["after"] * 2
    here = chain.partition('class="here')[2].partition("</li>")[0]
    assert "model.layers.1.self_attn.o_proj (input)" in here and "float32 [3, 16, 64]" in here
    assert 'class="named"' in page and labels.WORDS["neighbourhood"].in_language(lang) in page


def test_the_clean_twin_shows_both_passes_without_a_mark(reports_of: dict[str, Report]) -> None:
    page = drawn(reports_of["clean"])
    assert page.count('<figure class="depth">') == 3  # activations, gradients of both kinds
    assert 'class="chain"' not in page and 'class="named"' not in page
    assert not re.search(r'<path class="c[345]"', page)


def test_the_heat_map_is_hot_from_the_fault_on_and_has_a_drawing_a_step(
    reports_of: dict[str, Report],
) -> None:
    forward = next(r for r in reports_of["fault"].rungs if r.name.value == "forward")
    first, second = forward.profiles
    assert (first.step, second.step, second.marked) == (1, 2, None)
    assert {p.name for p in second.points} == {p.name for p in first.points}
    (point,) = (p for p in second.points if p.name == first.points[first.marked or 0].name)
    assert point.group == 1 and point.kind == "self_attn.o_proj (input)"
    assert point.error > 100 * point.limit
    assert all(p.error <= p.limit for p in second.points if p.group == 0)
    for profile in forward.profiles:
        assert re.search(r'class="c5"', heat_map(profile.points))


def test_a_profile_travels_through_the_document(reports_of: dict[str, Report]) -> None:
    report = reports_of["fault"]
    read = from_document(json.loads(json.dumps(to_document(report))), where="test")
    assert [r.profiles for r in read.rungs] == [r.profiles for r in report.rungs]


def test_a_page_of_a_hundred_layers_stays_small() -> None:
    points = tuple(
        Point(f"model.layers.{i}.m{k}", i, f"m{k}", 1e-5 * (k + 1), 1e-4, "bfloat16 [1, 2, 3]")
        for i in range(100)
        for k in range(25)
    )
    profile = Profile("forward", Text("t", "t"), 1, points, 600)
    assert len(depth_line(profile)) + 4 * len(heat_map(points)) < 700_000


def test_each_ratio_of_error_and_floor_has_its_colour() -> None:
    for ratio, style in ((0, "c0"), (0.2, "c1"), (1, "c2"), (1.1, "c3"), (math.inf, "c5")):
        point = Point("model.layers.0.m", 0, "m", ratio * 1.0, 1.0, "")
        assert re.findall(r'path class="(c\d)"', heat_map([point])) == [style]
    assert [each.style for each in BINS] == [f"c{i}" for i in range(6)]


points = st.builds(
    Point,
    st.text(max_size=8),
    st.none() | st.integers(0, 99),
    st.text(max_size=8),
    st.floats(),
    st.floats(),
    st.text(max_size=4),
)


@settings(max_examples=60)
@given(st.lists(points, max_size=8), st.integers(0, 7))
def test_any_points_give_figures_that_are_well_formed(found: list[Point], mark: int) -> None:
    marked = mark if mark < len(found) else None
    profile = Profile("p", Text("", ""), 1, tuple(found), marked)
    for svg in (depth_line(profile), heat_map(found)):
        ElementTree.fromstring(svg)
        assert not re.search(r'(d|x|y|cx|cy|width)="[^"]*(nan|inf)', svg)
    near = neighbourhood(profile)
    assert [n.place for n in near].count("here") == (marked is not None)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 70), st.floats(), st.floats())
def test_any_grid_gives_a_figure_that_is_well_formed(
    rows: int, columns: int, error: float, limit: float
) -> None:
    names = tuple(map(str, range(rows))), tuple(map(str, range(columns)))
    errors = tuple((error,) * columns for _ in range(rows))
    head, place = Text("head", "头"), Text("position", "位置")
    (drawing,) = grids_of([Grid("g", Text("t", "t"), head, place, *names, errors, limit)])
    ElementTree.fromstring(drawing.svg)
    assert drawing.svg.count("h11v11") == drawing.num_cells == rows * columns
    assert drawing.num_beyond == (drawing.num_cells if error > limit else 0)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_grid_is_shown_with_what_its_axes_are(reports_of: dict[str, Report], lang: str) -> None:
    head, place = Text("head", "头"), Text("position", "位置")
    grid = Grid("g", Text("t", "t"), head, place, ("0",), ("0", "1"), ((0.5, 0.1),), 0.2)
    report = reports_of["clean"]
    rungs = tuple(dataclasses.replace(rung, grids=(grid,)) for rung in report.rungs[:7])
    page = drawn(dataclasses.replace(report, rungs=(*rungs, *report.rungs[7:])), lang)
    assert {"en": "Down: head. Across: position.", "zh": "纵向：头。横向：位置。"}[lang] in page
    assert {"en": "1 of 2 cells", "zh": "1 格超出（共 2 格）"}[lang] in page


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_next_run_is_shown_with_its_commands_escaped(
    reports_of: dict[str, Report], lang: str
) -> None:
    commands = "align report a <b> | tee c", "align capture \\\n  -o ```run```"
    run = NextRun(Text("Repeat", "重复"), Text("w", "w"), commands)
    report = dataclasses.replace(reports_of["clean"], next_run=run)
    page = drawn(report, lang)
    box = page.partition('class="next-run"')[2].partition("</section>")[0]
    assert run.title.in_language(lang) in box
    assert "<pre><code>align report a &lt;b&gt; | tee c\n" in box
    assert 'class="next-run"' not in drawn(reports_of["clean"], lang)
    text = markdown.render(to_document(report), lang)
    assert labels.WORDS["next_run"].in_language(lang) in text
    assert "\n```sh\nalign report a <b> | tee c\n```\n" in text
    assert "\n````sh\nalign capture \\\n  -o ```run```\n````\n" in text
