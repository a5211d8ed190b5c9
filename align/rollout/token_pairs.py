"""Pair the rows of two runs: prompts first, then the responses to each prompt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Indel

from align.core.threshold import Threshold
from align.rollout.token_row import Ids, TokenRow
from align.rollout.token_spans import spans

_SHINGLE = 4  # tokens hashed together
_SKETCH = 64  # of a sequence's shingles, the smallest kept
_CANDIDATES = 8  # prompts compared token by token, of those that share shingles
_MIN_SHARED = 0.2  # of a sketch: responses that share less are not compared token by token
_MIN_COMMON = 16  # tokens in common; among fewer, two samples are alike by chance

NEAR = Threshold(
    0.8,
    source="two samples of one prompt share at most 0.125 of their tokens in a recorded verl run",
    num_samples=112,
)
"""Share of tokens two responses have in common, in order, for one to be the other, changed."""

_OF_ALL = 0.9  # of the prompts have a template's edit; its tokens can merge with a question's
_PROMPT_NEAR = 0.5  # a template can double a short question; the nearest prompt is taken


class How(str, Enum):
    """What two rows have in common."""

    TOKENS = "tokens"  # all
    CHANGED = "changed"  # the response but for single tokens, or its text
    PROMPT = "prompt"  # the prompt alone: the responses are other samples


@dataclass(frozen=True, slots=True)
class RowPair:
    """A row of each run."""

    reference: TokenRow
    candidate: TokenRow
    how: How


@dataclass(frozen=True, slots=True)
class Paired:
    """All pairs, in the reference's order, and the rows left over."""

    pairs: tuple[RowPair, ...]
    only_reference: tuple[TokenRow, ...]
    only_candidate: tuple[TokenRow, ...]


@dataclass(frozen=True)
class _Group:
    """The rows of one prompt on one side."""

    prompt: Ids
    rows: tuple[TokenRow, ...]
    text: str | None  # without special tokens

    @cached_property
    def sketch(self) -> frozenset[int]:
        return _sketch(self.prompt)


def pair_rows(
    reference: Sequence[TokenRow],
    candidate: Sequence[TokenRow],
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Paired:
    """Pair rows whose prompts have equal ids, equal texts, or else are nearest to each other.

    Args:
        decode: ids to text, to see that responses of other ids have one text.
    """
    pairs = _equal(reference, candidate)
    used = {id(row) for pair in pairs for row in (pair.reference, pair.candidate)}
    left = [[row for row in side if id(row) not in used] for side in (reference, candidate)]
    groups = (_groups(of_side, decode) for of_side in left)
    for ours, theirs in _matched(*groups, some_equal=bool(pairs)):
        pairs += _within(ours.rows, theirs.rows, decode)
    places = {id(row): place for place, row in enumerate(reference)}
    pairs.sort(key=lambda pair: places[id(pair.reference)])
    used = {id(row) for pair in pairs for row in (pair.reference, pair.candidate)}
    alone = [tuple(row for row in side if id(row) not in used) for side in (reference, candidate)]
    return Paired(tuple(pairs), alone[0], alone[1])


def _equal(reference: Sequence[TokenRow], candidate: Sequence[TokenRow]) -> list[RowPair]:
    waiting: dict[Ids, list[TokenRow]] = defaultdict(list)
    for row in reversed(candidate):
        waiting[row.tokens].append(row)
    return [
        RowPair(row, waiting[row.tokens].pop(), How.TOKENS)
        for row in reference
        if waiting[row.tokens]
    ]


def _groups(
    rows: Sequence[TokenRow], decode: Callable[[Sequence[int]], str] | None
) -> list[_Group]:
    by_prompt: dict[Ids, list[TokenRow]] = defaultdict(list)
    for row in rows:
        by_prompt[row.prompt].append(row)
    made = []
    for prompt, several in by_prompt.items():
        text = next((row.prompt_text for row in several if row.prompt_text), None)
        if text is None and decode is not None:
            text = decode(prompt)
        made.append(_Group(prompt, tuple(several), text or None))
    return made


def _matched(
    ours: list[_Group], theirs: list[_Group], *, some_equal: bool
) -> Iterator[tuple[_Group, _Group]]:
    for key in (lambda group: group.prompt, lambda group: group.text):
        found = _by_key(ours, theirs, key)
        yield from found
        some_equal = some_equal or bool(found)
        gone = {id(group) for pair in found for group in pair}
        ours, theirs = ([g for g in side if id(g) not in gone] for side in (ours, theirs))
    nearest = list(_nearest(ours, theirs))
    most = 2 * len(nearest) >= max(len(ours), len(theirs))
    edit = None if some_equal or not most else _template(nearest, ours, theirs)
    for pair in nearest:
        of_template = edit is not None and edit in _edits(*pair)
        if of_template or (not some_equal and _share_a_response(*pair)):
            yield pair


def _template(
    nearest: Sequence[tuple[_Group, _Group]], ours: Sequence[_Group], theirs: Sequence[_Group]
) -> tuple[Ids, Ids] | None:
    """Return the edit that makes one template of the other; None where there is none.

    A template changes every prompt, and all of them alike; another question changes its own words.
    """
    if not nearest or (len(nearest) == 1 and len(ours) * len(theirs) > 1):
        return None
    counts = Counter(edit for pair in nearest for edit in _edits(*pair))
    edit, count = counts.most_common(1)[0]
    return edit if count >= _OF_ALL * len(nearest) else None


def _edits(ours: _Group, theirs: _Group) -> set[tuple[Ids, Ids]]:
    return {span.edit for span in spans(ours.prompt, theirs.prompt)}


def _share_a_response(ours: _Group, theirs: _Group) -> bool:
    return any(is_near(a.response, b.response) for a in ours.rows for b in theirs.rows)


def _by_key(
    ours: list[_Group], theirs: list[_Group], key: Callable[[_Group], Hashable]
) -> list[tuple[_Group, _Group]]:
    waiting = {key(group): group for group in reversed(theirs)}
    return [
        (group, waiting.pop(key(group)))
        for group in ours
        if key(group) is not None and key(group) in waiting
    ]


def _nearest(ours: list[_Group], theirs: list[_Group]) -> Iterator[tuple[_Group, _Group]]:
    """Pair prompts that share the most of their tokens, the nearest first."""
    holders: dict[int, list[int]] = defaultdict(list)
    for place, group in enumerate(theirs):
        for shingle in group.sketch:
            holders[shingle].append(place)
    found = []
    for place, group in enumerate(ours):
        # a shingle that few prompts have tells more than one of the template
        weight: dict[int, float] = defaultdict(float)
        for shingle in group.sketch:
            for other in holders.get(shingle, ()):
                weight[other] += 1 / len(holders[shingle])
        for other in sorted(weight, key=lambda other: (-weight[other], other))[:_CANDIDATES]:
            likeness = similarity(group.prompt, theirs[other].prompt)
            if likeness >= _PROMPT_NEAR:
                found.append((-likeness, place, other))
    taken: tuple[set[int], set[int]] = set(), set()
    for _, place, other in sorted(found):
        if place not in taken[0] and other not in taken[1]:
            taken[0].add(place)
            taken[1].add(other)
            yield ours[place], theirs[other]


def _within(
    ours: Sequence[TokenRow],
    theirs: Sequence[TokenRow],
    decode: Callable[[Sequence[int]], str] | None,
) -> Iterator[RowPair]:
    """Pair the responses to one prompt: equal ones, changed ones, and the rest in their order."""
    waiting: dict[Ids, list[TokenRow]] = defaultdict(list)
    for row in reversed(theirs):
        waiting[row.response].append(row)
    left = []
    for row in ours:
        same = waiting[row.response]
        if same:
            other = same.pop()
            equal = row.tokens == other.tokens
            yield RowPair(row, other, How.TOKENS if equal else How.CHANGED)
        else:
            left.append(row)
    others = [row for several in waiting.values() for row in several]
    others.sort(key=lambda row: row.row)
    samples = []
    for row in left:
        changed = next((other for other in others if _is_changed(row, other, decode)), None)
        if changed is None:
            samples.append(row)
        else:
            others.remove(changed)
            yield RowPair(row, changed, How.CHANGED)
    for row, other in zip(samples, others, strict=False):
        yield RowPair(row, other, How.PROMPT)


def _is_changed(a: TokenRow, b: TokenRow, decode: Callable[[Sequence[int]], str] | None) -> bool:
    ours, theirs = a.response, b.response
    if not ours or not theirs:
        return not (ours or theirs)
    if ours[:-1] == theirs or theirs[:-1] == ours or (ours[:-1] == theirs[:-1] != ()):
        return True
    if a.response_text and a.response_text == b.response_text:
        return True
    if is_near(ours, theirs):
        return True
    return decode is not None and ours[:1] == theirs[:1] and decode(ours) == decode(theirs)


def is_near(a: Ids, b: Ids) -> bool:
    """Tell whether one response is the other, changed at some places."""
    sketches = _sketch(a), _sketch(b)
    shared = len(sketches[0] & sketches[1])
    if not shared or shared < _MIN_SHARED * min(map(len, sketches)):
        return False
    likeness = similarity(a, b)
    return likeness >= NEAR.value and likeness * (len(a) + len(b)) / 2 >= _MIN_COMMON


@lru_cache(maxsize=4096)
def _sketch(sequence: Ids) -> frozenset[int]:
    """Return the smallest hashes of a sequence's shingles: sequences alike share most of them."""
    ids = np.array(sequence, np.int64).astype(np.uint64)
    if len(ids) < _SHINGLE:
        return frozenset()
    hashes: npt.NDArray[np.uint64] = np.zeros(len(ids) - _SHINGLE + 1, np.uint64)
    for offset in range(_SHINGLE):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + ids[offset : offset + len(hashes)]
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    return frozenset(np.unique(hashes)[:_SKETCH].tolist())


def similarity(a: Ids, b: Ids) -> float:
    """Return the share of tokens two sequences have in common: 2 common / (len a + len b)."""
    return float(Indel.normalized_similarity(a, b))
