"""Join what every rank saw of a step into ``updates/STEP.safetensors``, which the loss rungs read.

A rank's micro-batch names its rows by their token ids alone, so each is looked up in the step's
batch by these. Equal rows of one batch are interchangeable: whatever is recorded of them is equal
too. Steps whose rows cannot all be found are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from align.core.errors import AlignError
from align.core.optional import require
from dumps.readers import captured_step, trainer_inputs
from dumps.readers.captured_step import CapturedStep
from dumps.readers.reader import no_progress
from dumps.store.run_index import ASSEMBLED, append_file, read_index

Array = npt.NDArray[np.generic]
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Micro:
    """One micro-batch: the ids of its rows, and its log_probs [rows, r]."""

    update: int
    number: int
    rows: tuple[Ids, ...]
    log_probs: Array


def assemble_updates(run: Path) -> list[int]:
    """Write the updates of every step that has none yet; return these steps."""
    done = []
    index = read_index(run)
    known = {file.file for file in index.files}
    for step in index.whole_steps:
        name = f"updates/{step:06d}.safetensors"
        batch = run / f"trainer_inputs/{step:06d}.safetensors"
        parts = sorted((run / f"steps/{step:06d}").glob("actor-*.safetensors"))
        if name in known or not parts or not batch.is_file():
            continue
        try:
            tensors = _assembled([captured_step.read(part) for part in parts], batch)
        except AlignError:  # the files are named where they are read
            continue
        if tensors:
            (run / "updates").mkdir(exist_ok=True)
            require("safetensors.numpy", extra="torch").save_file(dict(tensors), run / name)
            append_file(run, ASSEMBLED, run / name, step)
            done.append(step)
    return done


def _assembled(parts: Sequence[CapturedStep], batch: Path) -> Mapping[str, Array]:
    """Return the tensors of a step; empty where a row is not in its batch."""
    places = _places(batch)
    width = trainer_inputs.read(batch, no_progress).shapes["responses"][1]
    rows: list[int] = []
    updates: list[int] = []
    numbers: list[int] = []
    log_probs: list[Array] = []
    for first, micro in _numbered(parts):
        for ids, values in zip(micro.rows, micro.log_probs, strict=True):
            waiting = places.get((micro.update, ids)) or list(places.get((-1, ids), ()))
            if not waiting:
                return {}
            rows.append(waiting.pop(0))
            places[micro.update, ids] = waiting
            updates.append(micro.update)
            numbers.append(first + micro.number)
            log_probs.append(np.pad(values[:width], (0, max(0, width - len(values)))))
    if not rows:
        return {}
    return {
        "rows": np.array(rows, np.int64),
        "update": np.array(updates, np.int64),
        "micro_batch": np.array(numbers, np.int64),
        "log_probs": np.stack(log_probs),
        **_numbers(parts),
    }


def _places(batch: Path) -> dict[tuple[int, Ids], list[int]]:
    """Return where each row of the batch stands, by its attended ids, under update -1."""
    inputs = trainer_inputs.read(batch, no_progress)
    ids, attention = inputs.tensor("input_ids"), inputs.tensor("attention_mask")
    assert ids is not None and attention is not None  # what makes it a batch
    found: dict[tuple[int, Ids], list[int]] = defaultdict(list)
    for place, (row, seen) in enumerate(zip(ids, attention != 0, strict=True)):
        found[-1, tuple(row[seen].tolist())].append(place)
    return dict(found)


def _numbered(parts: Sequence[CapturedStep]) -> Iterator[tuple[int, _Micro]]:
    """Yield every rank's micro-batches, with the number that its first one has over all ranks."""
    for update in range(max(part.num_updates for part in parts)):
        first = 0
        for part in parts:
            micros = list(_micros(part, update))
            yield from ((first, micro) for micro in micros)
            first += len(micros)


def _micros(part: CapturedStep, update: int) -> Iterator[_Micro]:
    number = 0
    while (name := f"update.{update}.micro.{number}.") + "log_probs" in part.tensors:
        ids, ends = (part.tensors.get(name + key) for key in ("input_ids", "cu_seqlens"))
        if ids is None or ends is None:
            return
        rows = tuple(tuple(ids[a:b].tolist()) for a, b in pairwise(ends.tolist()))
        yield _Micro(update, number, rows, part.tensors[name + "log_probs"])
        number += 1


def _numbers(parts: Sequence[CapturedStep]) -> dict[str, Array]:
    """Return what is one number an update, by the names of verl's metrics."""
    count = max(part.num_updates for part in parts)
    squares = [[sum(p.gradient_squares(u).values()) for p in parts] for u in range(count)]
    norms = [[_scalar(p, f"update.{u}.grad_norm") for p in parts] for u in range(count)]
    losses = [[_loss(p, u) for p in parts if _has_losses(p, u)] for u in range(count)]
    columns = {
        "align/norm_of_gradients": [math.sqrt(sum(each)) or math.nan for each in squares],
        "actor/grad_norm": [each[0] for each in norms],
        "actor/pg_loss": [sum(each) / len(each) if each else math.nan for each in losses],
    }
    return {
        name: np.array(values, np.float64)
        for name, values in columns.items()
        if not any(map(math.isnan, values))
    }


def _has_losses(part: CapturedStep, update: int) -> bool:
    """Tell the ranks that record losses from those that share a model with one that does."""
    return f"update.{update}.micro.0.policy_loss" in part.tensors


def _loss(part: CapturedStep, update: int) -> float:
    """Return a rank's share of an update's policy loss; NaN where its parts do not add up."""
    if not part.losses_add_up:
        return math.nan
    count = sum(
        name.startswith(f"update.{update}.micro.") and name.endswith(".policy_loss")
        for name in part.tensors
    )
    return sum(
        _scalar(part, f"update.{update}.micro.{number}.policy_loss") for number in range(count)
    )


def _scalar(part: CapturedStep, name: str) -> float:
    return float(part.tensors[name]) if name in part.tensors else math.nan
