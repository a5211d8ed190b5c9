"""What must hold between the engine's tokens and the trainer's input, row by row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from align.rollout.retokenise import prefix_breaks
from align.rollout.token_defects import Broken, Defect, first_difference
from align.rollout.token_labels import label_defects
from align.rollout.token_row import Bool, Ids, TokenBatch, likely_stops
from align.rollout.token_row_checks import (
    after_end_defects,
    lacks_only_the_end,
    mask_defects,
    packed_defects,
    row_defects,
    shifted,
)
from align.rollout.token_rows import EngineRow, TokenRows, TrainerStep, matched

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks of one run saw.

    Args:
        num_rows, num_matched: rows of the trainer, and those the engine's tokens are known of.
        num_alone: rows of dumps that hold one side of the hand-over, checked by themselves.
        padding: the ids the run pads with.
    """

    num_rows: int
    num_matched: int
    num_alone: int
    broken: tuple[Broken, ...]
    padding: frozenset[int]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What is known of a side's tokenizer.

    Args:
        decode: ids to text without special tokens.
        size: the number of ids.
        special: the ids of special tokens.
    """

    decode: Decode
    size: int
    special: frozenset[int]


def check(rows: TokenRows, vocabulary: Vocabulary | None) -> Checked:
    """Check every row of a run.

    Args:
        rows: of one run.
        vocabulary: None where the tokenizer is not known.
    """
    stops = stop_ids(rows)
    special = None if vocabulary is None else vocabulary.special
    decode = None if vocabulary is None else vocabulary.decode
    broken: list[Broken] = []
    num_matched = 0
    for step in rows.trainer:
        alone = step.rows()
        ends = stops or likely_stops(alone, special)
        broken += (found for row in alone for found in row_defects(row, _size(vocabulary)))
        broken += label_defects(alone, ends)
        broken += after_end_defects(alone, special)
        pairs = matched(rows.engine.get(step.step, ()), step)
        num_matched += len(pairs)
        whole = not _are_cut(step, pairs)
        for engine, row in pairs:
            broken += _response(
                step, row, engine, stops if whole else (), decode if whole else None
            )
        broken += _masks(step, pairs) if pairs else mask_defects(alone, ends)
    for batch in rows.plain:
        broken += _alone(batch, stops, vocabulary)
    return Checked(
        num_rows=sum(len(step.input_ids) for step in rows.trainer),
        num_matched=num_matched,
        num_alone=sum(len(batch.rows) for batch in rows.plain),
        broken=tuple(broken),
        padding=frozenset(i for step in rows.trainer for i in step.padding),
    )


def _size(vocabulary: Vocabulary | None) -> int | None:
    return None if vocabulary is None else vocabulary.size


def _alone(
    batch: TokenBatch, stops: frozenset[int], vocabulary: Vocabulary | None
) -> Iterator[Broken]:
    """Check a dump that has no counterpart within its run."""
    ends = stops or likely_stops(batch.rows, None if vocabulary is None else vocabulary.special)
    for row in batch.rows:
        yield from row_defects(row, _size(vocabulary))
    yield from after_end_defects(batch.rows, None if vocabulary is None else vocabulary.special)
    yield from mask_defects(batch.rows, ends)
    yield from label_defects(batch.rows, ends)
    yield from packed_defects(batch.packed) if batch.packed is not None else ()
    yield from prefix_breaks(batch)


def stop_ids(rows: TokenRows) -> frozenset[int]:
    """Return the ids at which the engine of a run says it stopped by itself."""
    return frozenset(
        row.response[-1]
        for step in rows.engine.values()
        for row in step
        if row.finish_reason == "stop" and row.response
    )


def _are_cut(step: TrainerStep, pairs: Sequence[tuple[EngineRow, int]]) -> bool:
    """Tell whether every response lost its last token, those that never stopped included."""
    longer = [(engine, row) for engine, row in pairs if len(engine.response) > 1]
    cut = all(step.response(row) == engine.response[:-1] for engine, row in longer)
    return cut and any(engine.finish_reason != "stop" for engine, _ in longer)


def _response(
    step: TrainerStep, row: int, engine: EngineRow, stops: Collection[int], decode: Decode | None
) -> Iterator[Broken]:
    """Compare a response with what the engine made.

    Args:
        stops: ids at which the engine stops; none where all responses are cut, whatever their end.
    """
    found, made = step.response(row), engine.response
    # A trainer with fewer columns than the engine has tokens cuts off; that is its setting.
    made = made[: step.num_response_columns]
    if found == made:
        return
    defect = _kind(found, engine, made, stops, decode, step.num_response_columns)
    column = first_difference(found, made)
    around = slice(max(0, column - 2), column + 4)
    yield Broken(
        defect,
        step.step,
        step.source,
        row,
        "responses",
        column,
        made[around],
        found[around],
        engine,
    )


def _kind(
    found: Ids,
    engine: EngineRow,
    made: Ids,
    stops: Collection[int],
    decode: Decode | None,
    width: int,
) -> Defect:
    if engine.finish_reason == "stop" and stops and found == made[:-1]:
        return Defect.EOS_MISSING
    ends = bool(found) and found[-1] in stops and found[-1] not in made
    if engine.finish_reason == "length" and ends and found[:-1] in (made, made[:-1]):
        return Defect.EOS_FAKE
    if decode is not None and _same_text(decode(found), decode(made), len(found) == width):
        return Defect.RETOKENISED
    return Defect.RESPONSE_DIFFERS


def _same_text(found: str, made: str, fills_its_columns: bool) -> bool:
    """Compare texts; one encoded to more tokens than there are columns is cut off at the end."""
    return bool(found) and (found == made or (fills_its_columns and made.startswith(found)))


def _masks(step: TrainerStep, pairs: Sequence[tuple[EngineRow, int]]) -> Iterator[Broken]:
    """Compare the loss mask with the response's tokens; a row left out whole is a choice.

    A mask that ends one token early without starting early can be eos masked out or a shift: it is
    a shift where responses that never stopped lose their last token as well.
    """
    if step.mask is None:
        return
    early: list[tuple[EngineRow, int]] = []
    late: list[tuple[EngineRow, int]] = []
    no_end: list[tuple[EngineRow, int]] = []
    for engine, row in pairs:
        mask, expected = step.mask[row] != 0, _expected_mask(step, row, engine)
        if expected is None or not mask.any() or np.array_equal(mask, expected):
            continue
        if np.array_equal(mask, shifted(expected, 1)):
            late.append((engine, row))
        elif lacks_only_the_end(mask, expected):
            (no_end if engine.finish_reason == "stop" else early).append((engine, row))
        elif np.array_equal(mask, shifted(expected, -1)):
            early.append((engine, row))
    if early:
        early, no_end = early + no_end, []
    for defect, chosen in ((Defect.MASK_SHIFTED, late + early), (Defect.EOS_MISSING, no_end)):
        for engine, row in chosen:
            yield _broken_mask(step, row, engine, defect)


def _expected_mask(step: TrainerStep, row: int, engine: EngineRow) -> Bool | None:
    """Return 1 at the model's tokens; None where the trainer holds other tokens than were made."""
    width = step.num_response_columns
    attended = step.attention[row, step.split :] != 0
    if int(attended.sum()) != min(len(engine.mask), width):
        return None
    mask = np.zeros(width, np.bool_)
    mask[attended] = np.array(engine.mask[:width]) != 0
    return mask


def _broken_mask(step: TrainerStep, row: int, engine: EngineRow, defect: Defect) -> Broken:
    expected, found = _expected_mask(step, row, engine), step.mask
    assert expected is not None and found is not None
    made = tuple(expected.astype(np.int64).tolist())
    has = tuple((found[row] != 0).astype(np.int64).tolist())
    column = first_difference(has, made)
    return Broken(defect, step.step, step.source, row, "response_mask", column, made, has, engine)
