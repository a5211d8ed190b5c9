"""One trial: a folder with what was run, what came out and what it shows."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any

from align.bisect.command import command_line, environment, values_of
from align.bisect.commits import copy_of
from align.bisect.knob import KnobKind, Setting
from align.bisect.measure import measure
from align.bisect.plan import Plan, describe
from align.bisect.process import elapsed_s, exit_code_of, run_once
from align.bisect.search import Outcome
from align.bisect.vote import Reading
from dumps.store.atomic import write_atomic

_RECORD = "trial.json"
_copying = Lock()


@dataclass(frozen=True, slots=True)
class Trial:
    """A finished trial.

    Args:
        name: of its folder.
        repeat: 1-based.
        said: what its verdict was read from.
    """

    name: str
    setting: Setting
    repeat: int
    exit_code: int
    elapsed_s: float
    reading: Reading
    said: str


def trial_name(plan: Plan, setting: Setting, repeat: int) -> str:
    """Return the folder name: the same for the same command and values, whatever else changes."""
    stated: list[Any] = [plan.command, plan.override, values_of(plan.knobs, setting)]
    levels = zip(plan.knobs, setting, strict=True)
    stated.append([knob.commands[level] for knob, level in levels if knob.commands])
    text = json.dumps(stated, sort_keys=True, ensure_ascii=False)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:10]}-r{repeat}"


def is_finished(plan: Plan, folder: Path, setting: Setting, repeat: int) -> bool:
    """Tell whether a trial's command has been run to its end."""
    return exit_code_of(folder / "trials" / trial_name(plan, setting, repeat)) is not None


def run_trial(plan: Plan, folder: Path, setting: Setting, repeat: int, stop: Event) -> Trial:
    """Run one trial, or take its result where it has been run.

    Raises:
        Stopped: ``stop`` was set before its end.
        RunError: A commit cannot be copied.
    """
    name = trial_name(plan, setting, repeat)
    place = (folder / "trials" / name).resolve()
    commit = next((k for k in plan.knobs if k.kind is KnobKind.COMMIT), None)
    tree = None
    if commit is not None and plan.tree is not None:
        value = str(commit.values[setting[plan.knobs.index(commit)]])
        with _copying:
            tree = copy_of(plan.tree, value, (folder / "trees").resolve())
    command = command_line(plan, setting, place / "run", tree)
    variables = environment(plan, setting, os.environ)
    code = run_once(place, command, variables, Path(plan.where).resolve().parent, stop)
    measured = _recorded(place, plan)
    if measured is None:
        measured = measure(plan.test, code, place / "run", place / "output.log")
        reading, said = measured
        document = {
            "schema_version": 1,
            "values": values_of(plan.knobs, setting),
            "repeat": repeat,
            "command": command,
            "exit_code": code,
            "elapsed_s": round(elapsed_s(place), 3),
            "verdict": describe(plan.test),
            "outcome": reading.outcome.value,
            "distance": reading.distance,
            "said": said,
        }
        text = json.dumps(document, ensure_ascii=False, indent=1)
        write_atomic(place / _RECORD, f"{text}\n")
    return Trial(name, setting, repeat, code, elapsed_s(place), *measured)


def _recorded(place: Path, plan: Plan) -> tuple[Reading, str] | None:
    """Return what was measured before, None where it was not, or by another verdict."""
    try:
        document: dict[str, Any] = json.loads((place / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if document.get("verdict") != describe(plan.test):
        return None
    return Reading(Outcome(document["outcome"]), document["distance"]), str(document["said"])
