"""What a run consumed, compared row by row with what was recorded."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dumps.inject.plan import ReplayPlan
from dumps.inject.recorded import Step, fingerprint, read_step, recorded_steps
from dumps.inject.replay import CONSUMED


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a replay; goes into the manifest.

    Args:
        steps: that were consumed.
        rows: that were consumed.
        identical: of them, equal in prompt and response to the recorded row.
        mismatches: of them, unequal to the recorded row they stand for.
        generated: of them, not recorded and generated.
        left_over: recorded rows of these steps that were not consumed.
        out_of_order: steps whose rows stand in another order than recorded.
        scores_differ: identical rows with another score than recorded.
        recorded_sha256, consumed_sha256: over every consumed step's rows in their order.
        first: the first mismatches, in words.
    """

    steps: int
    rows: int
    identical: int
    mismatches: int
    generated: int
    left_over: int
    out_of_order: int
    scores_differ: int
    recorded_sha256: str
    consumed_sha256: str
    first: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all that was trained on is what was recorded, or was allowed to be generated."""
        return self.rows > 0 and not self.mismatches and not self.left_over

    def facts(self) -> dict[str, Any]:
        """Return it as the manifest holds it."""
        return {**asdict(self), "first": list(self.first), "holds": self.holds}


def prove(plan: ReplayPlan) -> Proof:
    """Compare everything that was consumed."""
    steps = set(recorded_steps(plan.rows))
    counts = dict.fromkeys(
        ("identical", "mismatches", "generated", "left_over", "out_of_order", "scores_differ"), 0
    )
    first: list[str] = []
    hashes = (hashlib.sha256(), hashlib.sha256())
    num_rows = num_steps = 0
    for number, rows in _consumed(plan):
        num_steps += 1
        num_rows += len(rows)
        step = read_step(plan.rows, number) if number in steps else None
        marks = [] if step is None else _marks(step)
        for digest, shown in zip(hashes, (marks, _shown(marks, rows)), strict=True):
            digest.update(json.dumps([number, shown]).encode())
        _compare(number, step, marks, rows, counts, first)
    return Proof(
        steps=num_steps,
        rows=num_rows,
        **counts,
        recorded_sha256=hashes[0].hexdigest(),
        consumed_sha256=hashes[1].hexdigest(),
        first=tuple(first[:5]),
    )


def _compare(
    number: int,
    step: Step | None,
    marks: Sequence[list[str]],
    rows: Sequence[list[Any]],
    counts: dict[str, int],
    first: list[str],
) -> None:
    places = [row[0] for row in rows if row[0] is not None]
    for i, (place, prompt, response, score) in enumerate(rows):
        if place is None or step is None:
            counts["generated"] += 1
        elif _equal(marks[place][0], prompt) and marks[place][1] == response:
            counts["identical"] += 1
            recorded = step.records[place].score
            if None not in (recorded, score) and not math.isclose(recorded, score, rel_tol=1e-6):
                counts["scores_differ"] += 1
        else:
            counts["mismatches"] += 1
            what = "response" if _equal(marks[place][0], prompt) else "prompt"
            first.append(f"step {number} row {i}: another {what} than recorded row {place}")
    if step is not None:
        counts["left_over"] += len(step.records) - len(set(places))
    counts["out_of_order"] += places != sorted(places)


def _shown(marks: Sequence[list[str]], rows: Sequence[list[Any]]) -> list[list[str]]:
    """Return hashes of prompt and response; none of a prompt that is recorded as text."""
    textual = {place for place, mark in enumerate(marks) if not mark[0]}
    return [["" if place in textual else prompt, answer] for place, prompt, answer, _ in rows]


def _equal(recorded: str, own: str) -> bool:
    return recorded in ("", own)  # a prompt recorded as text was compared as text


def _marks(step: Step) -> list[list[str]]:
    return [
        [fingerprint(record.prompt_ids), fingerprint(record.response_ids)]
        for record in step.records
    ]


def _consumed(plan: ReplayPlan) -> Iterator[tuple[int, list[list[Any]]]]:
    """Yield each step's rows; those of several processes one after the other."""
    joined: dict[int, list[list[Any]]] = {}
    for path in sorted((plan.folder / CONSUMED).glob("*.jsonl")):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            joined.setdefault(line["step"], []).extend(line["rows"])
    yield from sorted(joined.items())
