"""The versioned JSON document: `Report` to plain values and back.

Findings stand once, at the top level; rungs name them by id. Messages are English strings with
their Chinese twins under ``zh`` beside them. JSON has no NaN or infinity, so those floats are the
strings "NaN", "Infinity" and "-Infinity"; nothing else is a string in a number's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from align.core.errors import DocumentError
from align.core.figure import Cell, Column, Curve, CurvePair, Grid, Point, Profile, Table
from align.core.finding import (
    Evidence,
    Finding,
    Mechanism,
    Scalar,
    Severity,
    Side,
    Strength,
    Symptom,
)
from align.core.report import NextRun, Report, RunSummary
from align.core.rung import Missing, Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.verdict import Confidence, Verdict, VerdictStatus

SCHEMA_VERSION = 1

Json = dict[str, Any]
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_document(report: Report) -> Json:
    """Return the report as JSON-ready values with a fixed key order."""
    findings = [finding for rung in report.rungs for finding in rung.findings]
    return {
        "schema_version": SCHEMA_VERSION,
        "reference": run_to_json(report.reference),
        "candidate": run_to_json(report.candidate),
        "verdict": _verdict_to_json(report.verdict),
        "next_run": None if report.next_run is None else _next_run_to_json(report.next_run),
        "rungs": [_rung_to_json(rung) for rung in report.rungs],
        "findings": [finding_to_json(finding) for finding in findings],
    }


def from_document(document: Mapping[str, Any], *, where: str) -> Report:
    """Rebuild a report from its document.

    Args:
        document: parsed report.json.
        where: its path, for messages.

    Raises:
        DocumentError: Another schema version, or a field is missing or has the wrong type.
    """
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DocumentError(
            where=where,
            problem=f"has schema_version {version!r}, this program reads {SCHEMA_VERSION}",
            fix="make the report again with `align report REF CAND`",
        )
    try:
        return _report_from_json(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DocumentError(
            where=where,
            problem=f"is not a report document ({type(error).__name__}: {error})",
            fix="make the report again with `align report REF CAND`",
        ) from error


def scalar_to_json(value: Scalar) -> Scalar:
    """Return ``value`` with NaN and infinities spelled as strings."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def float_from_json(value: Scalar) -> float:
    """Return a float that `scalar_to_json` wrote."""
    return _NONFINITE[value] if isinstance(value, str) else float(value)  # type: ignore[arg-type]


def _scalars(values: Iterable[Scalar]) -> list[Scalar]:
    return [scalar_to_json(value) for value in values]


def _text_to_json(**texts: Text | None) -> Json:
    """Return ``{name: english, …, "zh": {name: chinese, …}}``."""
    json: Json = {name: None if text is None else text.en for name, text in texts.items()}
    json["zh"] = {name: text.zh for name, text in texts.items() if text is not None}
    return json


def _text(json: Mapping[str, Any], name: str) -> Text:
    return Text(_string(json[name]), _string(json["zh"][name]))


def _optional_string(value: Any) -> str | None:
    return None if value is None else _string(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a string belongs")
    return value


def _optional_text(json: Mapping[str, Any], name: str) -> Text | None:
    return None if json[name] is None else _text(json, name)


def run_to_json(run: RunSummary) -> Json:
    """Return one run's summary as JSON-ready values."""
    return {
        "label": run.label,
        "framework": run.framework,
        "framework_version": run.framework_version,
        "device": run.device,
        "first_step": run.first_step,
        "last_step": run.last_step,
        "num_files": run.num_files,
        "unknown_files": list(run.unknown_files),
        "problems": list(run.problems),
    }


def _run_from_json(json: Mapping[str, Any]) -> RunSummary:
    lists = {name: tuple(json[name]) for name in ("unknown_files", "problems")}
    return RunSummary(**{**json, **lists})


def _verdict_to_json(verdict: Verdict) -> Json:
    return {
        "status": verdict.status.value,
        "rung": None if verdict.rung is None else verdict.rung.value,
        "finding_id": verdict.finding_id,
        "confidence": verdict.confidence.value,
        "not_recorded": [rung.value for rung in verdict.not_recorded],
        **_text_to_json(
            sentence=verdict.sentence,
            cause=verdict.cause,
            fix=verdict.fix,
            next_step=verdict.next_step,
        ),
    }


def _verdict_from_json(json: Mapping[str, Any]) -> Verdict:
    return Verdict(
        status=VerdictStatus(json["status"]),
        rung=None if json["rung"] is None else Rung(json["rung"]),
        finding_id=_optional_string(json["finding_id"]),
        sentence=_text(json, "sentence"),
        cause=_optional_text(json, "cause"),
        confidence=Confidence(json["confidence"]),
        fix=_optional_text(json, "fix"),
        next_step=_optional_text(json, "next_step"),
        not_recorded=tuple(Rung(name) for name in json["not_recorded"]),
    )


def _rung_to_json(rung: RungResult) -> Json:
    return {
        "name": rung.name.value,
        "status": rung.status.value,
        **_text_to_json(summary=rung.summary),
        "findings": [finding.id for finding in rung.findings],
        "missing": [
            {
                "side": m.side,
                **_text_to_json(artifact=m.artifact, how_to_record=m.how_to_record),
            }
            for m in rung.missing
        ],
        "tables": [table_to_json(table) for table in rung.tables],
        "curves": [_pair_to_json(pair) for pair in rung.curves],
        "profiles": [_profile_to_json(profile) for profile in rung.profiles],
        **({"grids": [_grid_to_json(grid) for grid in rung.grids]} if rung.grids else {}),
    }


def _rung_from_json(json: Mapping[str, Any], findings: Sequence[Finding]) -> RungResult:
    return RungResult(
        name=Rung(json["name"]),
        status=RungStatus(json["status"]),
        summary=_text(json, "summary"),
        findings=tuple(findings),
        missing=tuple(
            Missing(_text(m, "artifact"), Side(m["side"]).value, _text(m, "how_to_record"))
            for m in json["missing"]
        ),
        tables=tuple(_table_from_json(table) for table in json["tables"]),
        curves=tuple(_pair_from_json(pair) for pair in json["curves"]),
        profiles=tuple(_profile_from_json(profile) for profile in json.get("profiles", ())),
        grids=tuple(_grid_from_json(grid) for grid in json.get("grids", ())),
    )


def finding_to_json(finding: Finding) -> Json:
    """Return one finding as JSON-ready values."""
    return {
        "id": finding.id,
        "rung": finding.rung.value,
        "severity": finding.severity.value,
        "reference": scalar_to_json(finding.reference),
        "candidate": scalar_to_json(finding.candidate),
        **_text_to_json(title=finding.title, why=finding.why, fix=finding.fix),
        "evidence": [
            {
                "source": e.source,
                "side": e.side.value,
                "line": e.line,
                "key": e.key,
                "text": e.text,
                "values": _scalars(e.values),
            }
            for e in finding.evidence
        ],
        "mechanism": _mechanism_to_json(finding.mechanism),
        "symptom": _symptom_to_json(finding.symptom),
    }


def _finding_from_json(json: Mapping[str, Any]) -> Finding:
    mechanism, symptom = json["mechanism"], json["symptom"]
    return Finding(
        id=_string(json["id"]),
        rung=Rung(json["rung"]),
        severity=Severity(json["severity"]),
        title=_text(json, "title"),
        reference=json["reference"],
        candidate=json["candidate"],
        evidence=tuple(
            Evidence(**{**e, "side": Side(e["side"]), "values": tuple(e["values"])})
            for e in json["evidence"]
        ),
        why=_text(json, "why"),
        fix=_text(json, "fix"),
        mechanism=mechanism
        and Mechanism(
            Rung(mechanism["acts_on"]),
            Strength(mechanism["strength"]),
            tuple(mechanism["signature"]),
        ),
        symptom=symptom and Symptom(**{**symptom, "rung": Rung(symptom["rung"])}),
    )


def _mechanism_to_json(mechanism: Mechanism | None) -> Json | None:
    if mechanism is None:
        return None
    return {
        "acts_on": mechanism.acts_on.value,
        "strength": mechanism.strength.value,
        "signature": list(mechanism.signature),
    }


def _symptom_to_json(symptom: Symptom | None) -> Json | None:
    if symptom is None:
        return None
    return {
        "metric": symptom.metric,
        "rung": symptom.rung.value,
        "step": symptom.step,
        "first_recorded_step": symptom.first_recorded_step,
        "noise_sized": symptom.noise_sized,
        "step_uncertainty": symptom.step_uncertainty,
    }


def table_to_json(table: Table) -> Json:
    """Return one table as JSON-ready values."""
    return {
        "id": table.id,
        **_text_to_json(title=table.title),
        "columns": [
            {"key": c.key, "numeric": c.numeric, **_text_to_json(title=c.title)}
            for c in table.columns
        ],
        "rows": [[_cell_to_json(cell) for cell in row] for row in table.rows],
    }


def _cell_to_json(cell: Cell) -> Scalar | Json:
    return {"en": cell.en, "zh": cell.zh} if isinstance(cell, Text) else scalar_to_json(cell)


def _cell_from_json(json: Scalar | Json) -> Cell:
    return Text(json["en"], json["zh"]) if isinstance(json, dict) else json


def _table_from_json(json: Mapping[str, Any]) -> Table:
    table = Table(
        id=json["id"],
        title=_text(json, "title"),
        columns=tuple(Column(c["key"], _text(c, "title"), c["numeric"]) for c in json["columns"]),
        rows=tuple(tuple(map(_cell_from_json, row)) for row in json["rows"]),
    )
    if any(len(row) != len(table.columns) for row in table.rows):
        raise ValueError(f"a row of table {table.id} has more cells than columns, or fewer")
    return table


def _pair_to_json(pair: CurvePair) -> Json:
    return {
        "metric": pair.metric,
        "reference": _curve_to_json(pair.reference),
        "candidate": _curve_to_json(pair.candidate),
        "window": pair.window,
        "finding_id": pair.finding_id,
        "onset": None if pair.onset is None else list(pair.onset),
        "noise": pair.noise,
        "task": pair.task,
        **_text_to_json(note=pair.note),
    }


def _pair_from_json(json: Mapping[str, Any]) -> CurvePair:
    return CurvePair(
        metric=json["metric"],
        reference=_curve_from_json(json["reference"]),
        candidate=_curve_from_json(json["candidate"]),
        window=int(json["window"]),
        note=_text(json, "note"),
        finding_id=_optional_string(json["finding_id"]),
        onset=_onset_from_json(json.get("onset")),
        noise=None if json.get("noise") is None else float(json["noise"]),
        task=_optional_string(json.get("task")),
    )


def _onset_from_json(json: Sequence[int] | None) -> tuple[int, int] | None:
    return None if json is None else (int(json[0]), int(json[1]))


def _curve_to_json(curve: Curve) -> Json:
    return {
        "steps": list(curve.steps),
        "values": _scalars(curve.values),
        "smoothed": _scalars(curve.smoothed),
    }


def _curve_from_json(json: Mapping[str, Any]) -> Curve:
    curve = Curve(
        steps=tuple(map(int, json["steps"])),
        values=tuple(map(float_from_json, json["values"])),
        smoothed=tuple(map(float_from_json, json["smoothed"])),
    )
    if not len(curve.steps) == len(curve.values) == len(curve.smoothed):
        raise ValueError("a curve has more steps than values, or fewer")
    return curve


def _profile_to_json(profile: Profile) -> Json:
    return {
        "id": profile.id,
        "step": profile.step,
        "marked": profile.marked,
        **_text_to_json(title=profile.title),
        "points": [
            [p.name, p.group, p.kind, scalar_to_json(p.error), scalar_to_json(p.limit), p.detail]
            for p in profile.points
        ],
    }


def _profile_from_json(json: Mapping[str, Any]) -> Profile:
    points = tuple(_point_from_json(*point) for point in json["points"])
    marked = json["marked"]
    if marked is not None and not 0 <= marked < len(points):
        raise ValueError(f"profile {json['id']} marks a point it does not have")
    return Profile(_string(json["id"]), _text(json, "title"), int(json["step"]), points, marked)


def _point_from_json(
    name: str, group: int | None, kind: str, error: Scalar, limit: Scalar, detail: str
) -> Point:
    return Point(
        _string(name),
        None if group is None else int(group),
        _string(kind),
        float_from_json(error),
        float_from_json(limit),
        _string(detail),
    )


def _grid_to_json(grid: Grid) -> Json:
    return {
        "id": grid.id,
        **_text_to_json(title=grid.title, down=grid.down, across=grid.across),
        "rows": list(grid.rows),
        "columns": list(grid.columns),
        "errors": [_scalars(row) for row in grid.errors],
        "limit": scalar_to_json(grid.limit),
    }


def _grid_from_json(json: Mapping[str, Any]) -> Grid:
    rows, columns = (tuple(_string(name) for name in json[key]) for key in ("rows", "columns"))
    errors = tuple(tuple(float_from_json(value) for value in row) for row in json["errors"])
    if len(errors) != len(rows) or any(len(row) != len(columns) for row in errors):
        raise ValueError(f"grid {json['id']} is not {len(rows)} by {len(columns)}")
    return Grid(
        _string(json["id"]),
        _text(json, "title"),
        _text(json, "down"),
        _text(json, "across"),
        rows,
        columns,
        errors,
        float_from_json(json["limit"]),
    )


def _report_from_json(document: Mapping[str, Any]) -> Report:
    findings = [_finding_from_json(json) for json in document["findings"]]
    return Report(
        reference=_run_from_json(document["reference"]),
        candidate=_run_from_json(document["candidate"]),
        verdict=_verdict_from_json(document["verdict"]),
        rungs=tuple(
            _rung_from_json(json, [f for f in findings if f.rung.value == json["name"]])
            for json in document["rungs"]
        ),
        next_run=_next_run_from_json(document.get("next_run")),
    )


def _next_run_to_json(run: NextRun) -> Json:
    return {
        "commands": list(run.commands),
        **_text_to_json(title=run.title, why=run.why, note=run.note),
    }


def _next_run_from_json(json: Mapping[str, Any] | None) -> NextRun | None:
    if json is None:
        return None
    commands = tuple(map(_string, json["commands"]))
    return NextRun(_text(json, "title"), _text(json, "why"), commands, _optional_text(json, "note"))
