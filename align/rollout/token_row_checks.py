"""What must hold within a row of token ids, whatever framework padded it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from align.rollout.token_defects import Broken, Defect, first_difference
from align.rollout.token_row import Bool, Ids, Int64, Packed, TokenRow

_SEVERAL = 3  # rows
_SHOWN = 6  # ids
_SIGNIFICANDS = (8, 11)  # bits of bfloat16 and float16


def row_defects(row: TokenRow, vocabulary: int | None) -> Iterator[Broken]:
    """Check the padding, positions and ids of one row.

    Args:
        vocabulary: the number of ids the tokenizer has; None where it is not known.
    """
    yield from _padding(row)
    yield from _positions(row)
    yield from _beyond(row, vocabulary)


def mask_defects(rows: Sequence[TokenRow], stops: frozenset[int]) -> Iterator[Broken]:
    """Compare loss masks with the responses' tokens; a row left out whole is a choice.

    A mask that ends one token early without starting early can be eos masked out or a shift: it is
    a shift where responses that never stopped lose their last token as well.
    """
    early: list[TokenRow] = []
    late: list[TokenRow] = []
    no_end: list[TokenRow] = []
    for row in rows:
        if row.mask is None or row.split is None or not row.mask.any():
            continue
        mask, expected = row.mask != 0, _expected_mask(row)
        if np.array_equal(mask, expected) or not expected.any():
            continue
        if np.array_equal(mask, shifted(expected, 1)):
            late.append(row)
        elif lacks_only_the_end(mask, expected):
            (no_end if row.tokens[-1] in stops else early).append(row)
        elif np.array_equal(mask, shifted(expected, -1)):
            early.append(row)
    if early:
        early, no_end = early + no_end, []
    for defect, chosen in ((Defect.MASK_SHIFTED, late + early), (Defect.EOS_MISSING, no_end)):
        for row in chosen:
            assert row.mask is not None
            yield _broken(defect, row, "response_mask", _expected_mask(row), row.mask != 0)


def after_end_defects(rows: Sequence[TokenRow], special: frozenset[int] | None) -> Iterator[Broken]:
    """Find responses that end with a special token and then, to their last column, with one other.

    An engine stops at the first: what follows is what a framework pads with. One row alone may be
    what a model samples; several are not.

    Args:
        special: the tokenizer's special tokens; nothing is found where they are not known.
    """
    found = [(row, ended) for row in rows if (ended := _after_end(row.response, special or ()))]
    if len(found) < _SEVERAL:
        return
    for row, ended in found:
        tail = row.response[ended - 1 :]
        first = int(row.columns[len(row.prompt) + ended])
        made = (*tail[:1], *([-1] * (len(tail) - 1)))
        yield Broken(
            *(Defect.AFTER_EOS, row.step, row.source, row.row, "input_ids", first),
            made[:_SHOWN],
            tail[:_SHOWN],
        )


def _after_end(response: Ids, special: Collection[int]) -> int:
    """Return where the padding of a response begins; 0 where it has none."""
    if not response or response[-1] not in special:
        return 0
    begins = len(response)
    while begins and response[begins - 1] == response[-1]:
        begins -= 1
    return begins if begins and response[begins - 1] in special else 0


def _expected_mask(row: TokenRow) -> Bool:
    expected = row.attended.copy()
    expected[: row.split] = False
    return expected


def shifted(mask: Bool, by: int) -> Bool:
    """Move a mask by one column or more; what leaves it is lost."""
    moved = np.zeros_like(mask)
    if by > 0:
        moved[by:] = mask[:-by]
    else:
        moved[:by] = mask[-by:]
    return moved


def lacks_only_the_end(mask: Bool, expected: Bool) -> bool:
    """Tell whether a mask is the expected one without its last column."""
    without = expected.copy()
    without[np.flatnonzero(expected)[-1:]] = False
    return bool(np.array_equal(mask, without))


def packed_defects(packed: Packed) -> Iterator[Broken]:
    """Check that boundaries cover every token and stand where positions begin anew."""
    bounds, size = packed.boundaries, len(packed.ids)
    expected = bounds.copy() if packed.restarts is None else np.append(packed.restarts, size)
    if packed.restarts is None and len(bounds):
        expected[0] = 0
        np.maximum.accumulate(expected, out=expected)
        expected[-1] = size
    tail = packed.ids[bounds[-1] :] if len(bounds) and 0 <= bounds[-1] <= size else packed.ids
    if len(tail) and len(bounds) and (tail == tail[0]).all() and bounds[-1] > 0:
        # what follows the last sequence is padding to a multiple
        expected = expected[expected < bounds[-1]]
        expected = np.append(expected, bounds[-1])
    if np.array_equal(bounds, expected):
        return
    found, should = tuple(bounds.tolist()), tuple(expected.tolist())
    at = first_difference(found, should)
    around = slice(max(0, at - 1), at + 4)
    yield Broken(
        Defect.PACKED_BOUNDARIES,
        packed.step,
        packed.source,
        0,
        "cu_seqlens",
        at,
        should[around],
        found[around],
    )


def _padding(row: TokenRow) -> Iterator[Broken]:
    """Find padding between tokens; after the prompt, the first token is predicted from it."""
    columns = row.columns
    if not len(columns) or not row.padding_known:
        return
    inside = ~row.attended[columns[0] : columns[-1] + 1]
    if not inside.any():
        return
    gap = int(columns[0] + np.flatnonzero(inside)[0])
    split = row.split
    if split and not row.attended[split - 1] and columns[0] < split <= columns[-1]:
        last = int(columns[columns < split][-1])
        if not (~row.attended[columns[0] : last]).any():
            yield _broken_at(Defect.PADDING_SIDE, row, last)
            return
    yield _broken_at(Defect.PADDING_INSIDE, row, gap - 1)


def _broken_at(defect: Defect, row: TokenRow, last: int) -> Broken:
    found = tuple(row.attended[last : last + 6].astype(np.int64).tolist())
    return Broken(
        defect,
        row.step,
        row.source,
        row.row,
        "attention_mask",
        last + 1,
        (1,) * len(found),
        found,
    )


def _beyond(row: TokenRow, vocabulary: int | None) -> Iterator[Broken]:
    ids = row.ids[row.columns]
    beyond = ids < 0 if vocabulary is None else (ids < 0) | (ids >= vocabulary)
    if beyond.any():
        first = int(row.columns[np.flatnonzero(beyond)[0]])
        around = tuple(row.ids[max(0, first - 2) : first + 4].tolist())
        limit = () if vocabulary is None else (vocabulary - 1,)
        yield Broken(
            Defect.IDS_BEYOND_VOCABULARY,
            row.step,
            row.source,
            row.row,
            "input_ids",
            first,
            limit,
            around,
        )


def _positions(row: TokenRow) -> Iterator[Broken]:
    """Find positions that do not count the tokens one by one; a constant start is free."""
    if row.positions is None or not len(row.columns):
        return
    found = row.positions[row.columns]
    expected = np.arange(len(found), dtype=np.int64) + found[0]
    if np.array_equal(found, expected):
        return
    defect = _position_defect(found, expected, row)
    if defect is None:
        return
    first = first_difference(tuple(found), tuple(expected))
    around = slice(max(0, first - 2), first + 4)
    yield Broken(
        defect,
        row.step,
        row.source,
        row.row,
        "position_ids",
        int(row.columns[first]),
        tuple(expected[around].tolist()),
        tuple(found[around].tolist()),
    )


def _position_defect(found: Int64, expected: Int64, row: TokenRow) -> Defect | None:
    """Name what was done to the positions of one row; None for what this check does not know."""
    columns = row.columns
    in_response = columns >= (row.split or 0)
    if np.array_equal(found[in_response], columns[in_response]) and np.array_equal(
        found[~in_response], expected[~in_response]
    ):
        return Defect.POSITIONS_LEFT_PADDING
    if any(np.array_equal(found, rounded(expected, bits)) for bits in _SIGNIFICANDS):
        return Defect.POSITIONS_ROUNDED
    steps = np.diff(found)
    return Defect.POSITIONS_DUPLICATED if ((steps == 0) | (steps == 1)).all() else None


def rounded(positions: Int64, bits: int) -> Int64:
    """Round whole numbers to a significand of some bits, ties to even: bfloat16 8, float16 11."""
    mantissa, exponent = np.frexp(positions.astype(np.float64))
    made: Int64 = np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits).astype(np.int64)
    return made


def _broken(defect: Defect, row: TokenRow, tensor: str, expected: Bool, found: Bool) -> Broken:
    made, has = tuple(expected.astype(int).tolist()), tuple(found.astype(int).tolist())
    at = first_difference(has, made)
    around = slice(max(0, at - 2), at + 6)
    return Broken(
        defect,
        row.step,
        row.source,
        row.row,
        tensor,
        at - row.mask_start,
        made[around],
        has[around],
    )
