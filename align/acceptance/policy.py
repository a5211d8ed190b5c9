"""What acceptance asks for, as a file declares it: formulas, metrics, limits, coverage."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from align.core.errors import ConfigError
from align.core.threshold import Threshold
from align.curves.axis import Axis

POLICIES = ("field", "reward", "inference", "seed_band", "mean_loss", "megatron")
_NO_HORIZON = {"steps": math.inf, "hours": math.inf}


class Formula(str, Enum):
    """How one error is computed; each is described by the criterion it makes."""

    COVERAGE = "coverage"
    ABSOLUTE_ERROR = "absolute_error"
    CONVERGENCE_ERROR = "convergence_error"
    MEAN_ERROR = "mean_error"
    FAILING_STEPS = "failing_steps"
    SEED_BAND = "seed_band"
    EVALUATION = "evaluation"


NEEDS = {
    Formula.COVERAGE: (),
    Formula.ABSOLUTE_ERROR: ("metrics", "limit"),
    Formula.CONVERGENCE_ERROR: ("metrics", "limit"),
    Formula.MEAN_ERROR: ("metrics",),
    Formula.FAILING_STEPS: ("metrics", "tolerance"),
    Formula.SEED_BAND: ("metrics",),
    Formula.EVALUATION: ("limit",),
}
_ALLOWS = {Formula.MEAN_ERROR: ("limit",), Formula.SEED_BAND: ("least_runs",)}


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing asked for.

    Args:
        metrics: vocabulary names; the first that both runs recorded is judged.
        limit: greatest error; None where it is what the reference's own repeats differ by.
        tolerance: of one step, as a share of the reference's value.
        least_runs: runs of the reference that make a band.
    """

    formula: Formula
    metrics: tuple[str, ...] = ()
    limit: Threshold | None = None
    tolerance: float = 0.0
    least_runs: int = 3


@dataclass(frozen=True, slots=True)
class Policy:
    """What acceptance asks for.

    Args:
        name: built-in name, or the file as given.
        text: of the file; ``sha256`` is of its bytes.
        axis: at equal values of which the runs are judged; its steps are the reference's.
        num_steps, limit_s: how much of the runs is judged: whichever ends first.
        tasks: clauses that every task must meet by itself; no metrics, as tasks bring their own.
    """

    name: str
    source: str
    text: str
    sha256: str
    axis: Axis
    num_steps: float
    limit_s: float
    clauses: tuple[Clause, ...]
    tasks: tuple[Clause, ...]


def read_policy(name: str) -> Policy:
    """Read a built-in policy, or a file.

    Raises:
        ConfigError: There is no such file, or it declares something this program cannot judge.
    """
    if name in POLICIES:
        raw = (files("align.acceptance") / "policies" / f"{name}.yaml").read_bytes()
    else:
        try:
            raw = Path(name).read_bytes()
        except OSError as error:
            raise ConfigError(
                where=name,
                problem=f"is no policy ({error.strerror})",
                fix=f"give a YAML file, or one of {', '.join(POLICIES)}",
            ) from error
    try:
        text = raw.decode("utf-8")
        document = yaml.safe_load(text)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(where=name, problem=f"is no YAML ({first})", fix="correct it") from error
    return _policy(name, text, hashlib.sha256(raw).hexdigest(), document)


def _policy(name: str, text: str, sha256: str, document: Any) -> Policy:
    if not isinstance(document, Mapping) or not document.get("clauses"):
        raise ConfigError(
            where=name, problem="declares no clauses", fix="write clauses: [{formula: …}, …]"
        )
    _only(name, "policy", document, ("source", "axis", "horizon", "clauses", "tasks"))
    source = str(document.get("source") or f"policy {name}")
    horizon = {**_NO_HORIZON, **(document.get("horizon") or {})}
    _only(name, "horizon", horizon, tuple(_NO_HORIZON))
    return Policy(
        name=name,
        source=source,
        text=text,
        sha256=sha256,
        axis=_axis(name, document.get("axis", Axis.STEP.value)),
        num_steps=_number(name, "horizon.steps", horizon["steps"]),
        limit_s=3600 * _number(name, "horizon.hours", horizon["hours"]),
        clauses=tuple(_clause(name, source, c, False) for c in document["clauses"]),
        tasks=tuple(_clause(name, source, c, True) for c in document.get("tasks") or ()),
    )


def _axis(name: str, raw: Any) -> Axis:
    if raw not in list(Axis):
        raise ConfigError(
            where=name, key="axis", problem=f"is {raw!r}", fix=f"use {', '.join(Axis)}"
        )
    return Axis(raw)


def _clause(name: str, source: str, raw: Any, of_task: bool) -> Clause:
    known = ", ".join(Formula)
    if not isinstance(raw, Mapping) or raw.get("formula") not in list(Formula):
        raise ConfigError(where=name, problem=f"{raw!r} has no known formula", fix=f"use {known}")
    formula = Formula(raw["formula"])
    if of_task and formula not in (Formula.ABSOLUTE_ERROR, Formula.CONVERGENCE_ERROR):
        raise ConfigError(
            where=name,
            problem=f"{formula.value} cannot be asked of a task",
            fix="ask for absolute_error or convergence_error",
        )
    needs = tuple(key for key in NEEDS[formula] if not (of_task and key == "metrics"))
    _only(name, formula.value, raw, ("formula", *needs, *_ALLOWS.get(formula, ())))
    absent = [key for key in needs if raw.get(key) is None]
    if absent:
        raise ConfigError(
            where=name, key=formula.value, problem=f"lacks {', '.join(absent)}", fix="add it"
        )
    limit = raw.get("limit")
    metrics = raw.get("metrics") or ()
    return Clause(
        formula=formula,
        metrics=(metrics,) if isinstance(metrics, str) else tuple(map(str, metrics)),
        limit=None if limit is None else Threshold(_number(name, "limit", limit), source=source),
        tolerance=_number(name, "tolerance", raw.get("tolerance", 0.0)),
        least_runs=int(_number(name, "least_runs", raw.get("least_runs", 3))),
    )


def _only(name: str, where: str, raw: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    strange = sorted(set(map(str, raw)) - set(keys))
    if strange:
        raise ConfigError(
            where=name,
            key=where,
            problem=f"has {', '.join(strange)}, which means nothing here",
            fix=f"use {', '.join(keys)}",
        )


def _number(name: str, key: str, value: Any) -> float:
    """Read a number; YAML 1.1 takes 1e-2 for text."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 0:
        raise ConfigError(
            where=name, key=key, problem=f"{value!r} is no number from 0 on", fix="write one"
        )
    return number
