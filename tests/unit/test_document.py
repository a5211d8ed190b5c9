"""report.json carries a report there and back, keeps to its schema, and refuses what is not one."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import align.core.document
from align.core.document import SCHEMA_VERSION, from_document, to_document
from align.core.errors import DocumentError
from align.core.figure import Column, Curve, CurvePair, Grid, Point, Profile, Table
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength, Symptom
from align.core.report import NextRun, Report, RunSummary
from align.core.rung import RUNGS, Missing, Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.verdict import Confidence, Verdict, VerdictStatus
from reports.render import html, markdown
from tests.example_report import awkward_report, long_report

SCHEMA_PATH = align.core.document.__file__.removesuffix("document.py") + "report.schema.json"
with open(SCHEMA_PATH, encoding="utf-8") as schema_file:
    SCHEMA = json.load(schema_file)

words = st.text(max_size=12)
texts = st.builds(Text, words, words)
maybe_texts = st.none() | texts
rungs = st.sampled_from(Rung)
# json writes a float that is whole as one and reads it back as one; NaN equals nothing, see below
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers() | finite | words
sides = st.sampled_from(["reference", "candidate", "both"])
evidence = st.builds(
    Evidence,
    source=words,
    side=st.sampled_from(Side),
    line=st.none() | st.integers(1),
    key=st.none() | words,
    text=st.none() | words,
    values=st.lists(scalars, max_size=2).map(tuple),
)
mechanisms = st.builds(
    Mechanism, rungs, st.sampled_from(Strength), st.lists(words, max_size=2).map(tuple)
)
symptoms = st.builds(Symptom, words, rungs, st.integers(), st.integers(), st.booleans())
missing = st.builds(Missing, texts, sides, texts)
columns = st.builds(Column, words, texts, st.booleans())


@st.composite
def findings(draw: st.DrawFn, rung: Rung) -> Finding:
    return Finding(
        id=draw(words),
        rung=rung,
        severity=draw(st.sampled_from(Severity)),
        title=draw(texts),
        reference=draw(scalars),
        candidate=draw(scalars),
        evidence=tuple(draw(st.lists(evidence, max_size=2))),
        why=draw(texts),
        fix=draw(texts),
        mechanism=draw(st.none() | mechanisms),
        symptom=draw(st.none() | symptoms),
    )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    heads = tuple(draw(st.lists(columns, max_size=3)))
    rows = draw(st.lists(st.tuples(*[scalars | texts] * len(heads)), max_size=3))
    return Table(draw(words), draw(texts), heads, tuple(rows))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    steps = draw(st.lists(st.integers(0, 10**6), max_size=4))
    values = st.lists(finite | st.just(math.inf), min_size=len(steps), max_size=len(steps))
    return Curve(tuple(steps), tuple(draw(values)), tuple(draw(values)))


pairs = st.builds(
    CurvePair,
    *[words, curves(), curves(), st.integers(1, 99), texts, st.none() | words],
    onset=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)),
    noise=st.none() | finite,
    task=st.none() | words,
)


points = st.builds(Point, words, st.none() | st.integers(0, 99), words, finite, finite, words)
next_runs = st.builds(NextRun, texts, texts, st.lists(words, max_size=2).map(tuple), maybe_texts)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    places = tuple(draw(st.lists(points, max_size=3)))
    marks = st.none() | st.integers(0, len(places) - 1) if places else st.none()
    return Profile(draw(words), draw(texts), draw(st.integers()), places, draw(marks))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    rows, columns = (tuple(draw(st.lists(words, max_size=2))) for _ in range(2))
    row = st.lists(finite, min_size=len(columns), max_size=len(columns)).map(tuple)
    errors = tuple(draw(st.lists(row, min_size=len(rows), max_size=len(rows))))
    drawn = (draw(words), draw(texts), draw(texts), draw(texts))
    return Grid(*drawn, rows, columns, errors, draw(finite))


@st.composite
def rung_results(draw: st.DrawFn, rung: Rung) -> RungResult:
    return RungResult(
        name=rung,
        status=draw(st.sampled_from(RungStatus)),
        summary=draw(texts),
        findings=tuple(draw(st.lists(findings(rung), max_size=2))),
        missing=tuple(draw(st.lists(missing, max_size=1))),
        tables=tuple(draw(st.lists(tables(), max_size=1))),
        curves=tuple(draw(st.lists(pairs, max_size=1))),
        profiles=tuple(draw(st.lists(profiles(), max_size=1))),
        grids=tuple(draw(st.lists(grids(), max_size=1))),
    )


runs = st.builds(
    RunSummary,
    *[words, st.none() | words, st.none() | words, st.none() | words],
    *[st.none() | st.integers(), st.none() | st.integers(), st.integers(0)],
    *[st.lists(words, max_size=2).map(tuple)] * 2,
)
verdicts = st.builds(
    Verdict,
    status=st.sampled_from(VerdictStatus),
    rung=st.none() | rungs,
    finding_id=st.none() | words,
    sentence=texts,
    cause=maybe_texts,
    confidence=st.sampled_from(Confidence),
    fix=maybe_texts,
    next_step=maybe_texts,
    not_recorded=st.lists(rungs, max_size=3).map(tuple),
)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    shown = draw(st.sets(st.sampled_from(Rung), max_size=3))
    results = tuple(draw(rung_results(rung)) for rung in RUNGS if rung in shown)
    return Report(draw(runs), draw(runs), draw(verdicts), results, draw(st.none() | next_runs))


@given(reports())
def test_a_report_survives_the_way_through_json_text(report: Report) -> None:
    assert from_document(_through_text(report), where="test") == report


@given(reports())
def test_every_document_keeps_to_the_schema(report: Report) -> None:
    Draft202012Validator(SCHEMA).validate(_through_text(report))


def test_the_schema_is_itself_valid_and_of_this_version() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema_version"]["const"] == SCHEMA_VERSION


@pytest.mark.parametrize(
    "report", [awkward_report(), long_report(20, 5, 4)], ids=["awkward", "long"]
)
def test_the_examples_keep_to_the_schema_and_are_stable(report: Report) -> None:
    document = _through_text(report)
    Draft202012Validator(SCHEMA).validate(document)
    assert to_document(from_document(document, where="test")) == document


@pytest.mark.parametrize(
    ("value", "written"),
    [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (0.5, 0.5)],
)
def test_floats_that_json_lacks_come_back_as_floats(value: float, written: object) -> None:
    curve = Curve((1,), (value,), (value,))
    pair = CurvePair("m", curve, curve, 1, Text("", ""))
    report = dataclasses.replace(
        awkward_report(),
        rungs=(RungResult(Rung.CURVES, RungStatus.ALIGNED, Text("", ""), curves=(pair,)),),
    )
    document = _through_text(report)
    assert document["rungs"][0]["curves"][0]["reference"]["values"] == [written]
    (read,) = from_document(document, where="test").rungs[0].curves[0].reference.values
    assert repr(read) == repr(value)


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_another_schema_version_is_named(version: object) -> None:
    document = _through_text(awkward_report()) | {"schema_version": version}
    with pytest.raises(DocumentError, match=r"old\.json: has schema_version") as caught:
        from_document(document, where="old.json")
    assert "align report REF CAND" in caught.value.fix


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_document_is_drawn_or_refused_never_a_traceback(data: st.DataObject) -> None:
    document = copy.deepcopy(SMALL)
    place, key = data.draw(st.sampled_from(list(_places(document))))
    damage: Any = data.draw(st.sampled_from(["drop", None, 7, -0.5, "x", "", [], {}, [1], True]))
    if damage == "drop":
        del place[key]
    else:
        place[key] = damage
    for draw in (html.render, markdown.render):
        try:
            draw(document, "en")
        except DocumentError as refusal:
            assert refusal.where and refusal.fix


def _through_text(report: Report) -> dict[str, Any]:
    document = json.loads(json.dumps(to_document(report), allow_nan=False))
    assert isinstance(document, dict)
    return document


def _small_document() -> dict[str, Any]:
    """Keep one rung of each kind and one short curve: drawing is what takes time."""
    document = _through_text(awkward_report())
    kept = ("config", "tokenizer", "curves")
    document["rungs"] = [rung for rung in document["rungs"] if rung["name"] in kept]
    document["findings"] = [f for f in document["findings"] if f["rung"] in kept]
    del document["rungs"][-1]["curves"][1:]
    return document


def _places(value: object) -> Any:
    """Yield every (container, key) of a document."""
    if isinstance(value, Mapping | list):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in entries:
            yield value, key
            yield from _places(inner)


SMALL = _small_document()
