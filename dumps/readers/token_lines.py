"""Token ids a line: ``{"input_ids": [...], "attention_mask": [...], "labels": [...]}``, or
``prompt_ids`` and ``response_ids`` as agent loops and verifiers write them.

A line whose ids are not whole numbers is left out, counted and named; the rest is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from align.core.errors import DumpError
from align.core.run import ArtifactKind
from dumps.readers.json_lines import Unreadable, first_object, iter_objects
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.token_tensors import CANONICAL, TokenTensors, holds_ids, step_of

if TYPE_CHECKING:
    from dumps.readers.token_tensors import Array

FORMAT = "token_lines"
_PROMPTS = ("prompt", "input", "prompt_text")
_RESPONSES = ("response", "output", "completion", "response_text")
_STEPS = ("step", "global_step", "global_steps")
_TRAJECTORIES = ("trajectory_id", "request_id", "rollout_id", "uid")
_TURNS = ("turn", "turn_id", "num_turns")
_KEY = re.compile(r"(\d+):\d+:\d+")  # step:row:sample, as a custom agent loop can name a call

Row = tuple[int, dict[str, Any], dict[str, "Array"]]


def read(path: Path, progress: Progress) -> tuple[TokenTensors, ...]:
    """Read the rows, one batch a step.

    Raises:
        DumpError: No line has token ids.
    """
    rows: list[Row] = []
    bad: Counter[str] = Counter()
    example: dict[str, int] = {}
    for line, values, _ in iter_objects(path, progress):
        tensors = values.why if isinstance(values, Unreadable) else _tensors(values)
        if isinstance(tensors, str):
            bad[tensors] += 1
            example.setdefault(tensors, line)
        elif not isinstance(values, Unreadable):
            rows.append((line, values, tensors))
    problems = tuple(
        f"{path}:{example[why]}: {why}; {n} such lines left out" for why, n in bad.items()
    )
    if not rows:
        raise DumpError(
            where=str(path),
            problem=f"no line has token ids ({next(iter(problems), 'it is empty')})",
            fix="write input_ids, or prompt_ids and response_ids, as lists of whole numbers",
        )
    steps: dict[int | None, list[Row]] = {}
    for row in rows:
        steps.setdefault(_step(row[1], path), []).append(row)
    first = next(iter(steps))
    return tuple(
        _batch(path, step, of_step, problems if step == first else ())
        for step, of_step in steps.items()
    )


def _batch(
    path: Path, step: int | None, rows: Sequence[Row], problems: tuple[str, ...]
) -> TokenTensors:
    names = dict.fromkeys(name for _, _, tensors in rows for name in tensors)
    nothing = np.zeros(0, np.int64)
    trajectories = [_trajectory(values) for _, values, _ in rows]
    return TokenTensors(
        source=str(path),
        step=step,
        tensors={name: [t.get(name, nothing) for _, _, t in rows] for name in names},
        lines=[line for line, _, _ in rows],
        texts=[(_text(v, _PROMPTS), _text(v, _RESPONSES)) for _, v, _ in rows],
        finish_reasons=[_text(v, ("finish_reason", "stop_reason")) for _, v, _ in rows],
        trajectories=None if None in trajectories else [t for t in trajectories if t],
        problems=problems,
    )


def _tensors(values: Mapping[str, Any]) -> dict[str, Array] | str:
    """Return a row's lists by verl's names, or why they cannot be used."""
    found: dict[str, Array] = {}
    for key in sorted(values, key=lambda key: CANONICAL.get(key) != key):
        name, value = CANONICAL.get(key), values[key]
        if name is None or name in found or not isinstance(value, list | int):
            continue
        numbers = value if isinstance(value, list) else [value]
        kinds = {type(number) for number in numbers}
        if not kinds <= {int, bool}:
            why = f"{key} mixes in {', '.join(sorted(k.__name__ for k in kinds - {int, bool}))}"
            if name == "position_ids" and kinds <= {int, float}:
                found[name] = np.array(numbers, np.float64)
                continue
            return why
        try:
            found[name] = np.array(numbers, np.int64)
        except OverflowError:
            return f"{key} has a number beyond 64 bits"
    return found if holds_ids(list(found)) else "no list of token ids"


def _step(values: Mapping[str, Any], path: Path) -> int | None:
    stated = [int(values[key]) for key in _STEPS if type(values.get(key)) is int]
    if stated:
        return stated[0]
    named = _KEY.fullmatch(str(values.get("key", "")))
    return int(named[1]) if named else step_of(path)


def _text(values: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((values[key] for key in keys if isinstance(values.get(key), str)), None)


def _trajectory(values: Mapping[str, Any]) -> tuple[str, int] | None:
    turn = next((values[key] for key in _TURNS if type(values.get(key)) is int), None)
    name = next((values[key] for key in _TRAJECTORIES if key in values), None)
    return None if turn is None or name is None else (str(name), turn)


def _sniff(glimpse: Glimpse) -> bool:
    row = first_object(glimpse)
    if row is None or {"score", "reward"} & row.keys():
        return False  # a rollout dump has its own readers
    lists = [key for key, value in row.items() if isinstance(value, list)]
    return holds_ids(lists) and not isinstance(row.get("data"), list | dict)


READER = Reader(FORMAT, ArtifactKind.TOKENS, _sniff, read)
