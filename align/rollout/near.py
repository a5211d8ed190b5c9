"""Pair the responses to one prompt: word by word first, then nearly alike.

Responses that are nearly alike come from one sampling path: greedy decoding that rounding split, a
stop string kept on one side, a cut at another length. Comparing texts costs time, so that is done
for the first steps, up to a number of rows, and the result says how many those were.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

import numpy as np
from rapidfuzz import fuzz, process

from align.core.threshold import Threshold
from dumps.store.rollout_index import Int64, without_special_tokens
from dumps.store.rollout_pair import RolloutPair, SideRows

NEAR = Threshold(
    90.0,
    source="Indel similarity in percent; of 272 pairs of independent responses of verl 0.9.1 to "
    "one prompt the most alike reach 56",
    num_samples=272,
)
_MIN_LENGTH = 48  # characters: one digit of a short answer is a tenth of it, and another answer
_MAX_ROWS = 8192


@dataclass(frozen=True, slots=True)
class NearPair:
    """Two responses to one prompt that are nearly alike.

    Args:
        reference, candidate: positions in the sides' rows.
        similarity: in percent.
        first_difference: characters both begin with.
    """

    step: int
    reference: int
    candidate: int
    similarity: float
    first_difference: int


@dataclass(frozen=True, slots=True)
class NearPairs:
    """All that were found among the rows whose texts were compared."""

    pairs: tuple[NearPair, ...]
    num_compared: int  # rows of the reference

    @property
    def first_difference(self) -> float | None:
        """Median number of characters that near pairs begin with; None without a pair."""
        return median(p.first_difference for p in self.pairs) if self.pairs else None


def near_pairs(pair: RolloutPair) -> NearPairs:
    """Pair what is left after equal texts, best first, each row once."""
    reference, candidate = left_over(pair.reference, pair.candidate, _MIN_LENGTH)
    reference = reference[:_MAX_ROWS]
    a, b = pair.reference, pair.candidate
    if not len(reference):
        return NearPairs((), 0)
    candidate = candidate[b.step[candidate] <= a.step[reference[-1]]][: 4 * _MAX_ROWS]
    texts = [
        dict(zip(rows.tolist(), _texts(side, rows), strict=True))
        for side, rows in ((a, reference), (b, candidate))
    ]
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in candidate.tolist():
        waiting[int(b.step[row]), int(b.prompt[row])].append(row)
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in reference.tolist():
        groups[int(a.step[row]), int(a.prompt[row])].append(row)
    found = [
        near
        for key, ours in groups.items()
        if (theirs := waiting.get(key))
        for near in _best(key[0], ours, theirs, texts[0], texts[1])
    ]
    return NearPairs(tuple(found), len(reference))


def left_over(reference: SideRows, candidate: SideRows, min_length: int = 0) -> tuple[Int64, Int64]:
    """Return the rows of common prompts that have no equal twin on the other side.

    Args:
        min_length: characters of a response.
    """
    width = 2 + int(max(reference.response.max(initial=0), candidate.response.max(initial=0)))
    questions = 2 + int(max(reference.prompt.max(initial=0), candidate.prompt.max(initial=0)))
    sides = (reference, candidate)
    group = [(side.step + 1) * questions + side.prompt + 1 for side in sides]
    text = [np.unique(np.concatenate(group), return_inverse=True)[1]]
    numbers = [text[0][: len(reference)], text[0][len(reference) :]]
    keys = [n * width + side.response + 1 for n, side in zip(numbers, sides, strict=True)]
    left = []
    for side, own, other, mine, yours in (
        (reference, keys[0], keys[1], group[0], group[1]),
        (candidate, keys[1], keys[0], group[1], group[0]),
    ):
        free = ~np.isin(own, other) & np.isin(mine, yours) & (side.length >= min_length)
        left.append(np.flatnonzero(free & (side.step >= 0) & (side.prompt >= 0)))
    return left[0], left[1]


def _texts(side: SideRows, rows: Int64) -> list[str]:
    texts = side.index.texts(side.row[rows])
    return [without_special_tokens(text.response).strip() for text in texts]


def _best(
    step: int, ours: list[int], theirs: list[int], a: dict[int, str], b: dict[int, str]
) -> list[NearPair]:
    scores = process.cdist(
        [a[row] for row in ours],
        [b[row] for row in theirs],
        scorer=fuzz.ratio,
        score_cutoff=NEAR.value,
    )
    found = []
    for flat in np.argsort(-scores, axis=None, kind="stable").tolist():
        i, j = divmod(flat, len(theirs))
        if scores[i, j] <= 0:
            break
        same = _common_start(a[ours[i]], b[theirs[j]])
        found.append(NearPair(step, ours[i], theirs[j], float(scores[i, j]), same))
        scores[i, :] = scores[:, j] = 0
    return found


def _common_start(a: str, b: str) -> int:
    both = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(both) if x != y), min(len(a), len(b)))
