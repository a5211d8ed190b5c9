"""Read a plan from its YAML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from align.bisect.command import placeholders
from align.bisect.commits import between
from align.bisect.config_knobs import config_knobs
from align.bisect.knob import Knob, KnobKind
from align.bisect.plan import (
    ExitCodeTest,
    FindingTest,
    LeftOut,
    MetricTest,
    Plan,
    RungTest,
    Test,
)
from align.bisect.runs import configuration
from align.bisect.vote import Repeats
from align.core.errors import ConfigError
from align.core.rung import Rung
from dumps.readers.yaml_source import loader

_KEYS = ("command", "override", "knobs", "from", "ignore", "verdict", "repeats")
_KINDS = tuple(kind.value for kind in KnobKind)


def read_plan(path: Path) -> Plan:
    """Read a plan; paths in it are relative to its folder.

    Raises:
        ConfigError: It is no plan; the message names the key.
        RunError: A run or commit it names cannot be used.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=loader())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(
            where=str(path),
            problem=f"cannot be read as YAML ({first})",
            fix="`align bisect plan REF CAND -o plan.yaml -- CMD` writes a plan",
        ) from error
    return plan_of(tree, path)


def plan_of(tree: Any, path: Path) -> Plan:
    """Make a plan of a parsed document."""
    where = str(path)
    _known(tree, _KEYS, where, None)
    command = tree.get("command")
    if not isinstance(command, str) or not command.strip():
        raise _error(where, "command", "is missing", "write the command that runs one trial")
    knobs, left = _knobs(tree, path)
    tests = _test(tree.get("verdict", "exit_code"), path)
    plan = Plan(
        where,
        command,
        knobs,
        tests,
        _repeats(tree.get("repeats", {}), where),
        str(tree.get("override", "{key}={value}")),
        _tree(tree, path),
        left,
    )
    _check_command(plan)
    return plan


def _knobs(tree: Mapping[str, Any], path: Path) -> tuple[tuple[Knob, ...], tuple[LeftOut, ...]]:
    given = tree.get("knobs") or []
    if not isinstance(given, list):
        raise _error(str(path), "knobs", "is no list", "write one item a knob")
    knobs = [_knob(item, path) for item in given]
    left: tuple[LeftOut, ...] = ()
    if "from" in tree:
        runs = tree["from"]
        _known(runs, ("reference", "candidate"), str(path), "from")
        sides = [configuration(path.parent / str(runs.get(s))) for s in ("reference", "candidate")]
        found, left = config_knobs(*sides)
        stated = {knob.name for knob in knobs}
        knobs += [knob for knob in found if knob.name not in stated]
    ignored = set(map(str, tree.get("ignore") or []))
    knobs = [knob for knob in knobs if knob.name not in ignored]
    names = [knob.name for knob in knobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _error(str(path), twice, "is a knob twice", "keep one of the two")
    if not knobs:
        raise _error(str(path), "knobs", "there are none", "state knobs, or from: two runs")
    return tuple(knobs), left


def _knob(item: Any, path: Path) -> Knob:
    where = str(path)
    allowed = ("reference", "candidate", "values", "tree", *_KINDS)
    _known(item, allowed, where, "knobs")
    kind = next((kind for kind in _KINDS if kind in item), None)
    if kind is None:
        raise _error(where, "knobs", f"{item} has no kind", f"begin it with {', '.join(_KINDS)}")
    name = str(item[kind])
    if kind == "commit":
        between_ends = [str(item.get(side)) for side in ("reference", "candidate")]
        tree = path.parent / str(item.get("tree", "."))
        return Knob(name, KnobKind.COMMIT, between(tree, *between_ends))
    if "values" in item:
        return _several(name, KnobKind(kind), item["values"], where)
    for side in ("reference", "candidate"):
        if side not in item:
            raise _error(where, name, f"has no value of the {side}", f"add {side}:")
    ends = (item["reference"], item["candidate"])
    if kind == "version":
        return _several(name, KnobKind.VERSION, ends, where)
    return Knob(name, KnobKind(kind), tuple(map(_leaf, ends)))


def _several(name: str, kind: KnobKind, values: Iterable[Any], where: str) -> Knob:
    """Make a knob of values in order, from the reference's to the candidate's."""
    made, commands = [], []
    for value in values:
        if isinstance(value, Mapping):
            _known(value, ("value", "command"), where, name)
        made.append(_leaf(value.get("value") if isinstance(value, Mapping) else value))
        commands.append(str(value.get("command", "")) if isinstance(value, Mapping) else "")
    if len(made) < 2:
        raise _error(where, name, "has fewer than two values", "give the values of both sides")
    return Knob(name, kind, tuple(made), tuple(commands) if any(commands) else ())


def _leaf(value: Any) -> Any:
    return tuple(map(_leaf, value)) if isinstance(value, list) else value


def _tree(tree: Mapping[str, Any], path: Path) -> Path | None:
    trees = [item.get("tree", ".") for item in tree.get("knobs") or [] if "commit" in item]
    if len(trees) > 1:
        raise _error(str(path), "knobs", "has two commit knobs", "search one, then the other")
    return path.parent / str(trees[0]) if trees else None


def _test(item: Any, path: Path) -> Test:
    where = str(path)
    if item == "exit_code":
        return ExitCodeTest()
    allowed = ("metric", "above", "below", "steps", "reference", "finding", "rung")
    _known(item, allowed, where, "verdict")
    reference = path.parent / str(item["reference"]) if "reference" in item else None
    if "metric" in item:
        limits = [side for side in ("above", "below") if side in item]
        if len(limits) != 1 or not isinstance(item[limits[0]], int | float):
            raise _error(where, "verdict", "has no threshold", "add above: or below: and a number")
        return MetricTest(
            str(item["metric"]),
            float(item[limits[0]]),
            limits[0] == "above",
            item.get("steps"),
            reference,
        )
    if reference is None:
        raise _error(where, "verdict", "names no reference run", "add reference: RUN")
    if "finding" in item:
        _rung(str(item["finding"]).partition(".")[0], where)
        return FindingTest(reference, str(item["finding"]))
    return RungTest(reference, _rung(str(item.get("rung")), where))


def _rung(name: str, where: str) -> Rung:
    try:
        return Rung(name)
    except ValueError:
        known = ", ".join(rung.value for rung in Rung)
        raise _error(where, "verdict", f"{name} is no rung", f"begin with one of {known}") from None


def _repeats(item: Any, where: str) -> Repeats:
    _known(item, tuple(f.name for f in fields(Repeats)), where, "repeats")
    repeats = Repeats(**item)
    if not 1 <= repeats.least <= repeats.most or not 0.5 < repeats.confidence < 1:
        raise _error(
            where,
            "repeats",
            "cannot be kept",
            "let least be 1 at least and most no less, confidence between 0.5 and 1",
        )
    return repeats


def _check_command(plan: Plan) -> None:
    """Refuse a command that would run every trial alike."""
    given, needed = placeholders(plan.command), set(_needed(plan))
    for name in sorted(needed - given):
        raise _error(plan.where, "command", f"lacks {{{name}}}", f"put {{{name}}} where it belongs")


def _needed(plan: Plan) -> Iterator[str]:
    if any(knob.kind is KnobKind.CONFIG for knob in plan.knobs):
        yield "overrides"
    for knob in plan.knobs:
        if knob.kind is KnobKind.VERSION and not knob.commands:
            yield knob.name
        if knob.kind is KnobKind.COMMIT and "tree" not in placeholders(plan.command):
            yield knob.name


def _known(item: Any, allowed: tuple[str, ...], where: str, key: str | None) -> None:
    if not isinstance(item, Mapping):
        raise _error(where, key, "is no mapping", f"write {', '.join(allowed)}")
    stranger = next((name for name in item if name not in allowed), None)
    if stranger is not None:
        raise _error(where, str(stranger), "is not known here", f"use {', '.join(allowed)}")


def _error(where: str, key: str | None, problem: str, fix: str) -> ConfigError:
    return ConfigError(where=where, key=key, problem=problem, fix=fix)
