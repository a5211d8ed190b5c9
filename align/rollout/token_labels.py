"""Training labels against the tokens they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np

from align.rollout.token_defects import Broken, Defect
from align.rollout.token_row import IGNORED, Int64, TokenRow

_HALF = 0.5  # fewer labels that fit either way are no labels of these tokens at all


class Shift(str, Enum):
    """Which token a label names: that of its own column, or the next, which is predicted there."""

    NONE = "none"
    ONE = "one"


def label_shift(rows: Sequence[TokenRow]) -> Shift | None:
    """Return how a dump's labels are laid out; None without labels of these tokens.

    MindSpeed-RL calls the data set's answer ``labels``: such labels fit no column.
    """
    fit = {shift: 0 for shift in Shift}
    count = 0
    for row in rows:
        if row.labels is None:
            continue
        valid = row.labels != IGNORED
        count += int(valid.sum())
        for shift in Shift:
            fit[shift] += int((valid & (row.labels == _named(row.ids, shift))).sum())
    best = max(fit, key=lambda shift: fit[shift])
    return best if count and fit[best] > _HALF * count else None


def label_defects(rows: Sequence[TokenRow], stops: frozenset[int]) -> Iterator[Broken]:
    """Find labels that name other tokens, and end tokens without a label beside labelled ones."""
    shift = label_shift(rows)
    if shift is None:
        return
    for row in rows:
        if row.labels is None:
            continue
        should = _named(row.ids, shift)
        wrong = np.flatnonzero((row.labels != IGNORED) & (row.labels != should))
        if len(wrong):
            yield _broken(Defect.LABELS_DIFFER, row, int(wrong[0]), should)
        end = int(row.columns[-1]) - (shift is Shift.ONE) if len(row.columns) else 0
        if (
            end > 0
            and row.tokens[-1] in stops
            and row.labels[end] == IGNORED
            and row.labels[end - 1] != IGNORED
        ):
            yield _broken(Defect.EOS_MISSING, row, end, should)


def _named(ids: Int64, shift: Shift) -> Int64:
    if shift is Shift.NONE:
        return ids
    return np.append(ids[1:], IGNORED)


def _broken(defect: Defect, row: TokenRow, column: int, should: Int64) -> Broken:
    assert row.labels is not None
    around = slice(max(0, column - 2), column + 3)
    return Broken(
        defect,
        row.step,
        row.source,
        row.row,
        "labels",
        column,
        tuple(should[around].tolist()),
        tuple(row.labels[around].tolist()),
    )
