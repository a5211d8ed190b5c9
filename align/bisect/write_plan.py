"""Write a first plan for two recorded runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from align.bisect.command import placeholders, template
from align.bisect.config_knobs import config_knobs
from align.bisect.plan import LeftOut
from align.bisect.runs import configuration, load
from align.config.translation_text import literal
from align.core.errors import RunError
from align.core.finding import Finding, Severity
from align.ladder import climb, earliest_symptom

_HYDRA = ("verl", "mindspeed_rl")


def plan_text(reference: Path, candidate: Path, command: Sequence[str], folder: Path) -> str:
    """Return a plan: a knob for every differing key, the earliest symptom as its verdict.

    Args:
        folder: of the plan; the runs are written relative to it.

    Raises:
        RunError: The runs state no difference that a key can set.
    """
    sides = configuration(reference), configuration(candidate)
    knobs, left = config_knobs(*sides)
    if not knobs:
        raise RunError(
            where=str(candidate),
            problem=f"states no setting that differs from {reference} and that a key can change",
            fix="write a plan with versions, variables or commits as knobs",
        )
    report = climb(load([reference]), load([candidate]))
    symptom = earliest_symptom(f for rung in report.rungs for f in rung.findings)
    text = template(command)
    lines = ["# A plan of `align bisect`: which of these settings makes the difference?"]
    lines += [f"command: {_string(text)}"]
    if "out" not in placeholders(text):
        lines.insert(
            1, "# Without {out}, the trial's run folder, only what the command prints is read."
        )
    if sides[1].framework in _HYDRA:
        lines += ['override: "++{key}={value}"  # Hydra: add the key or change it']
    lines += ["verdict:", f"  reference: {literal(_path(reference, folder))}", *_verdict(symptom)]
    lines += ["knobs:"]
    for knob in knobs:
        first, last = map(literal, knob.values)
        lines += [f"  - {{config: {knob.name}, reference: {first}, candidate: {last}}}"]
    lines += _left(left)
    return "\n".join(lines) + "\n"


def _string(text: str) -> str:
    """Return a text as a YAML string."""
    return json.dumps(text, ensure_ascii=False)


def _verdict(symptom: Finding | None) -> Iterator[str]:
    if symptom is None:
        yield "  rung: curves  # the two runs show no symptom: state the one you see"
    else:
        kind = "error" if symptom.severity is Severity.ERROR else "warning"
        yield f"  finding: {symptom.id}  # the earliest {kind} between the two runs"


def _left(left: Sequence[LeftOut]) -> Iterator[str]:
    if left:
        yield "# Different too, and no knob:"
        yield from (f"#   {item.name}: {item.why}" for item in left)


def _path(run: Path, folder: Path) -> str:
    return os.path.relpath(run.resolve(), folder.resolve())
