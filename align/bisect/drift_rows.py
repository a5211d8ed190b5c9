"""The first rows in which two runs differ, and the first token of the first of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from align.core.threshold import Threshold
from dumps.readers import rollout_rows, rollout_store
from dumps.store.rollout_index import Int64, RolloutIndex, RowText
from dumps.store.rollout_pair import RolloutPair, SideRows

SAMPLED_APART = Threshold(
    0.5, "half of the first step's responses equal word by word: sampled apart, few are", None
)
_QUOTED = 3


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """Where two responses part.

    Args:
        position: 0-based, of the token, or of the character where no ids are recorded.
        reference, candidate: what stands there; None behind the end.
    """

    in_tokens: bool
    position: int
    reference: str | None
    candidate: str | None


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first step that has a differing row.

    Args:
        step: None where every row is the same.
        num_rows: rows of that step, on the side that has fewer.
        num_responses: rows whose response the other side has not, to the same prompt.
        num_scores: rows of equal response and other score.
        is_first: it is the first common step.
        sampled_apart: the first common step is different in most rows already, so that no row tells
            more than another.
        quoted: pairs of rows: of equal response and other score, else of one prompt.
        token: where the responses of the first pair part.
    """

    step: int | None
    num_rows: int = 0
    num_responses: int = 0
    num_scores: int = 0
    is_first: bool = False
    sampled_apart: bool = False
    quoted: tuple[tuple[RowText, RowText], ...] = ()
    token: TokenPlace | None = None


def first_rows(pair: RolloutPair) -> FirstRows:
    """Compare the rows of every common step, those of one prompt with each other."""
    for number, (step, reference, candidate) in enumerate(pair.by_step()):
        same, other = _matched(reference, candidate)
        rows = min(len(reference), len(candidate))
        scores = _other_scores(reference, candidate, same)
        if len(same) == rows and not len(scores):
            continue
        apart = number == 0 and len(same) < SAMPLED_APART.value * rows
        chosen = scores if len(scores) else other
        quoted = tuple(
            (
                reference.index.texts(reference.row[a : a + 1])[0],
                candidate.index.texts(candidate.row[b : b + 1])[0],
            )
            for a, b in chosen[:_QUOTED].tolist()
        )
        token = None
        if len(other) and not len(scores):
            a, b = other[0].tolist()
            token = _parting(reference, candidate, a, b)
        return FirstRows(
            step, rows, rows - len(same), len(scores), number == 0, apart, quoted, token
        )
    return FirstRows(None)


def _matched(reference: SideRows, candidate: SideRows) -> tuple[Int64, Int64]:
    """Pair rows: those equal in prompt and response, then the others of each prompt in order.

    Returns: two int64 [k, 2] of places in the reference and the candidate.
    """
    waiting: dict[tuple[int, int], list[int]] = {}
    for place in reversed(range(len(candidate))):
        key = int(candidate.prompt[place]), int(candidate.response[place])
        waiting.setdefault(key, []).append(place)
    same, left = [], []
    for place in range(len(reference)):
        found = waiting.get((int(reference.prompt[place]), int(reference.response[place])))
        if found:
            same.append((place, found.pop()))
        else:
            left.append(place)
    others: dict[int, list[int]] = {}
    for place in sorted((p for places in waiting.values() for p in places), reverse=True):
        others.setdefault(int(candidate.prompt[place]), []).append(place)
    apart = [
        (place, others[prompt].pop())
        for place in left
        if others.get(prompt := int(reference.prompt[place]))
    ]
    return _places(same), _places(apart)


def _places(pairs: list[tuple[int, int]]) -> Int64:
    return np.array(pairs, np.int64).reshape(-1, 2)


def _other_scores(reference: SideRows, candidate: SideRows, same: Int64) -> Int64:
    scores = reference.score[same[:, 0]], candidate.score[same[:, 1]]
    differ = ~np.isclose(*scores, rtol=1e-6, atol=1e-9) & ~np.isnan(scores[0] + scores[1])
    chosen: Int64 = same[differ]
    return chosen


def _parting(reference: SideRows, candidate: SideRows, a: int, b: int) -> TokenPlace | None:
    rows = [_fields(reference.index, int(reference.row[a]))]
    rows.append(_fields(candidate.index, int(candidate.row[b])))
    for key, in_tokens in (("response_ids", True), ("output", False), ("response", False)):
        ours, theirs = (row.get(key) for row in rows)
        if ours is not None and theirs is not None and len(ours) + len(theirs):
            return _first_unequal(ours, theirs, in_tokens)
    return None


def _first_unequal(ours: Any, theirs: Any, in_tokens: bool) -> TokenPlace | None:
    common = min(len(ours), len(theirs))
    place = next((i for i in range(common) if ours[i] != theirs[i]), common)
    if place == len(ours) == len(theirs):
        return None
    shown = [str(side[place]) if place < len(side) else None for side in (ours, theirs)]
    return TokenPlace(in_tokens, place, *shown)


def _fields(index: RolloutIndex, row: int) -> dict[str, Any]:
    path, line = Path(index.sources[int(index.source[row])]), int(index.line[row])
    reader = rollout_store if path.suffix == ".parquet" else rollout_rows
    return dict(reader.read_rows(path, [line]).get(line, {}))
