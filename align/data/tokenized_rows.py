"""Data sets of which one holds text and the other token ids, made comparable by a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from align.core.data_set import DataSet
from align.data.constant_edit import Edit, edit_between
from align.data.match_rows import NO_ROW, match_prompts, row_texts
from align.data.prompt_text import PromptText
from align.data.replay import within
from align.data.run_order import RunOrder
from align.data.torch_generator import Int64
from dumps.readers.row_hashes import row_hashes

_SAMPLES = 64  # rows whose renderings are compared word by word
_NOTHING: Int64 = np.zeros(0, np.int64)


def with_questions(data: DataSet, prompts: PromptText, other: DataSet) -> DataSet:
    """Return a data set of token ids as one of questions: those of the other that it contains.

    A prompt that contains none of them stays as it is, template and all.
    """
    if data.token_ids is None or other.prompts is None:
        return data
    texts = prompts.decoded(data.token_ids)
    questions = list(row_texts(other.prompts).numbers)
    found = match_prompts(texts, row_texts(other.prompts)).tolist()
    asked = [text if n == NO_ROW else questions[n] for n, text in zip(found, texts, strict=True)]
    labels = None if data.label_ids is None else prompts.decoded(data.label_ids)
    return replace(data, prompts=asked, labels=labels, token_ids=None, label_ids=None)


@dataclass(frozen=True, slots=True)
class RenderedDiff:
    """How the same questions are rendered otherwise.

    Args:
        edit: of the first row that differs.
        constant: all rows looked at differ by this edit.
        num_differing, num_compared: rows.
        row: the first that differs, (reference row, candidate row).
        texts: its two renderings.
    """

    edit: Edit
    constant: bool
    num_differing: int
    num_compared: int
    row: tuple[int, int]
    texts: tuple[str, str]


def compare_rendered(
    rows: Sequence[tuple[int, int]], reference: Sequence[str], candidate: Sequence[str]
) -> RenderedDiff | None:
    """Compare renderings of the same questions; None where all are equal.

    Args:
        rows: (reference row, candidate row) of each common question.
    """
    differing = [(a, b) for a, b in rows if reference[a] != candidate[b]]
    if not differing:
        return None
    edits = [edit_between(reference[a], candidate[b]) for a, b in differing[:_SAMPLES]]
    a, b = differing[0]
    constant = len(set(edits)) == 1 and len(differing) == len(rows)
    return RenderedDiff(
        edits[0], constant, len(differing), len(rows), (a, b), (reference[a], candidate[b])
    )


def common_rows(reference: DataSet, candidate: DataSet) -> list[tuple[int, int]]:
    """Pair the questions that stand once in either data set, in the reference's order."""
    ours, at_a, counts_a = np.unique(row_hashes(reference), return_index=True, return_counts=True)
    theirs, at_b, counts_b = np.unique(row_hashes(candidate), return_index=True, return_counts=True)
    _, a, b = np.intersect1d(ours, theirs, return_indices=True)
    once = (counts_a[a] == 1) & (counts_b[b] == 1)
    return sorted(zip(at_a[a[once]].tolist(), at_b[b[once]].tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class FilterDiff:
    """Common rows of which only one side's length filter keeps each.

    Args:
        only_reference, only_candidate: (reference row, candidate row) [k, 2].
        num_kept: rows of each side's data set that its filter keeps.
    """

    only_reference: Int64
    only_candidate: Int64
    num_kept: tuple[int, int]


def compare_filters(
    rows: Sequence[tuple[int, int]], orders: tuple[RunOrder, RunOrder]
) -> FilterDiff | None:
    """Apply both sides' length filters; None where a length is not known, or none filters."""
    if not any(order.settings.filters_length for order in orders) or not rows:
        return None
    kept = [_kept(order) for order in orders]
    if kept[0] is None or kept[1] is None:
        return None
    pairs = np.array(rows, np.int64)
    ours, theirs = kept[0][pairs[:, 0]], kept[1][pairs[:, 1]]
    return FilterDiff(
        pairs[ours & ~theirs], pairs[theirs & ~ours], (int(kept[0].sum()), int(kept[1].sum()))
    )


def _kept(order: RunOrder) -> npt.NDArray[np.bool_] | None:
    settings = order.settings
    if order.data_set is None or settings.length_filter is None:
        return None
    if not settings.filters_length:
        return np.ones(len(order.data_set), np.bool_)
    if order.lengths is None or settings.max_prompt_length is None:
        return None
    return within(order.lengths, settings.length_filter, settings.max_prompt_length)


def rows_beyond(data: DataSet, vocabulary_size: int) -> Int64:
    """Return the rows that hold an id below 0 or beyond the vocabulary [k]."""
    if data.token_ids is None:
        return _NOTHING
    bad = [
        row
        for row, ids in enumerate(data.token_ids)
        if len(ids) and (int(ids.max()) >= vocabulary_size or int(ids.min()) < 0)
    ]
    return np.array(bad, np.int64)
