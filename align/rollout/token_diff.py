"""What the paired rows of two runs differ in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from align.rollout.token_labels import Shift, label_shift
from align.rollout.token_pairs import How, RowPair, is_near
from align.rollout.token_row import IGNORED, Int64, TokenRow
from align.rollout.token_spans import Decode, Span, spans


class Difference(str, Enum):
    """How two paired rows differ; the value ends the finding's id."""

    PROMPT = "prompt_differs"
    EOS_MISSING = "eos_missing"
    EOS_FAKE = "eos_fake"
    RETOKENISED = "retokenised"
    NEARLY_IDENTICAL = "nearly_identical"
    MASK = "mask_differs"
    POSITIONS = "position_ids_differ"
    POSITIONS_OFFSET = "position_ids_offset"
    LABELS = "labels_differ"
    LABELS_SHIFTED = "labels_shifted"


_OF_RESPONSES = frozenset(
    {
        Difference.EOS_MISSING,
        Difference.EOS_FAKE,
        Difference.RETOKENISED,
        Difference.NEARLY_IDENTICAL,
    }
)


@dataclass(frozen=True, slots=True)
class PairDiff:
    """One difference of one pair.

    Args:
        at_fault: "reference" or "candidate" where one side is known to be wrong, else None.
        spans: where the ids differ; of masks, positions and labels none.
        token: first token at which masks, positions or labels differ.
    """

    difference: Difference
    pair: RowPair
    at_fault: str | None = None
    spans: tuple[Span, ...] = ()
    token: int | None = None


def pair_diffs(
    pairs: Sequence[RowPair],
    stops: frozenset[int],
    decode: Decode | None,
) -> list[PairDiff]:
    """Compare every pair.

    Args:
        stops: ids at which the models end a response.
        decode: ids to text without special tokens.
    """
    limits = _limit([p.reference for p in pairs]), _limit([p.candidate for p in pairs])
    found: list[PairDiff] = []
    for pair in pairs:
        found += _prompts(pair)
        found += _responses(pair, stops, limits, decode)
        found += _beside_ids(pair)
    return [*found, *_label_layouts(pairs)]


def without_chance(diffs: Sequence[PairDiff], num_samples: int) -> list[PairDiff]:
    """Leave out what two samples of one prompt can differ in by chance.

    They can part at the last token, or spell one word in two ways; where responses were handed
    from one run to the other, more rows are changed like that than are other samples.

    Args:
        num_samples: pairs whose responses are other samples.
    """
    counts = Counter(diff.difference for diff in diffs)
    return [
        diff
        for diff in diffs
        if diff.difference not in _OF_RESPONSES or counts[diff.difference] > num_samples
    ]


def _limit(rows: Sequence[TokenRow]) -> int | None:
    """Return the length at which responses were cut: the greatest, if several have it."""
    lengths = Counter(len(row.response) for row in rows)
    greatest = max(lengths, default=0)
    return greatest if lengths[greatest] > 1 else None


def _is_cut(row: TokenRow, limit: int | None) -> bool:
    """Tell whether a response was ended by the limit, not by the model."""
    if row.stopped is not None:
        return not row.stopped
    fills = len(row.columns) > 0 and row.columns[-1] == len(row.ids) - 1
    return len(row.response) == limit or bool(fills and not row.attended.all())


def _prompts(pair: RowPair) -> list[PairDiff]:
    ours, theirs = pair.reference.prompt, pair.candidate.prompt
    if ours == theirs or (not pair.reference.response) != (not pair.candidate.response):
        return []
    return [PairDiff(Difference.PROMPT, pair, spans=spans(ours, theirs))]


def _responses(
    pair: RowPair,
    stops: frozenset[int],
    limits: tuple[int | None, int | None],
    decode: Decode | None,
) -> list[PairDiff]:
    ours, theirs = pair.reference.response, pair.candidate.response
    if pair.how is How.PROMPT or ours == theirs or not ours or not theirs:
        return []
    where = spans(ours, theirs)
    ended = _ended(pair, stops, limits)
    if ended is not None:
        return [PairDiff(ended[0], pair, ended[1], where)]
    if decode is not None and decode(ours) == decode(theirs):
        return [PairDiff(Difference.RETOKENISED, pair, spans=where)]
    if not is_near(ours, theirs):
        return []
    return [PairDiff(Difference.NEARLY_IDENTICAL, pair, spans=where)]


def _ended(
    pair: RowPair, stops: frozenset[int], limits: tuple[int | None, int | None]
) -> tuple[Difference, str] | None:
    """Tell whether one response ends with eos and the other does not, and whose fault that is.

    An end after a response that was cut, or in place of its last token, is made up.
    """
    sides = (pair.reference, "reference", limits[0]), (pair.candidate, "candidate", limits[1])
    for (ended, its_name, _), (other, other_name, limit) in (sides, sides[::-1]):
        if ended.response[-1] not in stops and stops:
            continue
        cut = _is_cut(other, limit)
        if ended.response[:-1] == other.response:
            fault = (Difference.EOS_FAKE, its_name), (Difference.EOS_MISSING, other_name)
            return fault[0] if cut else fault[1]
        if cut and ended.response[:-1] == other.response[:-1] and other.response[-1] not in stops:
            return Difference.EOS_FAKE, its_name
    return None


def _beside_ids(pair: RowPair) -> list[PairDiff]:
    """Compare masks and positions token by token; padding may lie elsewhere."""
    ours, theirs = pair.reference, pair.candidate
    same = ours.tokens == theirs.tokens
    if not same and (not ours.response or ours.response != theirs.response):
        return []
    found = []
    size = len(ours.response) or len(ours.tokens)
    masks = [_tail(row, row.mask, size) for row in (ours, theirs)]
    if all(mask is not None and mask.any() for mask in masks):
        unequal = np.flatnonzero((masks[0] != 0) != (masks[1] != 0))
        if len(unequal):
            found.append(PairDiff(Difference.MASK, pair, token=int(unequal[0])))
    size = len(ours.tokens) if same else size
    positions = [_tail(row, row.positions, size) for row in (ours, theirs)]
    if positions[0] is not None and positions[1] is not None:
        offsets = positions[0] - positions[1]
        changes = np.flatnonzero(offsets != offsets[0])
        if len(changes):
            found.append(PairDiff(Difference.POSITIONS, pair, token=int(changes[0])))
        elif same and offsets[0]:
            found.append(PairDiff(Difference.POSITIONS_OFFSET, pair, token=0))
    return found


def _tail(row: TokenRow, values: Int64 | None, size: int) -> Int64 | None:
    return None if values is None else values[row.columns][-size:]


def _label_layouts(pairs: Sequence[RowPair]) -> list[PairDiff]:
    """Compare labels as the tokens they name, so that their layout does not matter."""
    shifts = [
        label_shift([row for row in side if row.labels is not None])
        for side in ([p.reference for p in pairs], [p.candidate for p in pairs])
    ]
    if shifts[0] is None or shifts[1] is None:
        return []
    found = []
    if shifts[0] is not shifts[1]:
        fault = "candidate" if shifts[1] is Shift.ONE else "reference"
        found += [
            PairDiff(Difference.LABELS_SHIFTED, pair, fault, token=0)
            for pair in pairs
            if pair.reference.labels is not None and pair.candidate.labels is not None
        ]
    for pair in pairs:
        ours, theirs = (
            _labelled(row, shift)
            for row, shift in zip((pair.reference, pair.candidate), shifts, strict=True)
        )
        if pair.how is How.TOKENS and ours is not None and theirs is not None and ours != theirs:
            first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            found.append(PairDiff(Difference.LABELS, pair, token=first))
    return found


def _labelled(row: TokenRow, shift: Shift | None) -> tuple[bool, ...] | None:
    """Return which tokens have a label that names them."""
    if row.labels is None:
        return None
    labels = row.labels
    if shift is Shift.ONE:
        labels = np.concatenate([[IGNORED], labels[:-1]])
    return tuple((labels[row.columns] != IGNORED).tolist())
