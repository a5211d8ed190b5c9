"""Two data sets row by row: lost, added, repeated and altered rows, and other labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from align.core.data_set import DataSet
from align.data.constant_edit import ConstantEdit, find_constant_edit
from align.data.torch_generator import Int64
from dumps.readers.row_hashes import Hashes, normal, row_hashes

_SAMPLES = 64  # unmatched rows of either side compared for a constant edit
_SHINGLE = 8
_SAME_ROW = 0.5  # share of common 8-character pieces above which two rows are one, altered


@dataclass(frozen=True, slots=True, eq=False)
class DataSetDiff:
    """What two data sets have in common. Rows are row numbers from 0.

    Args:
        lost, added: rows of the reference, of the candidate, whose question the other lacks.
        altered: (reference row, candidate row) at one place, whose questions are nearly the same;
            they are not among the lost and added.
        edit: what alters all of them alike, such as an instruction appended to every question.
        repeated: reference rows whose question stands another number of times in the candidate.
        num_moved: common rows at another place, where nothing else differs.
        other_labels: (reference row, candidate row) of one question with different labels.
        lost_labels, added_labels: rows that only the other side has a label for.
    """

    num_rows: tuple[int, int]
    lost: Int64
    added: Int64
    altered: Int64
    edit: ConstantEdit | None
    repeated: Int64
    num_moved: int
    other_labels: Int64
    lost_labels: Int64
    added_labels: Int64

    @property
    def num_common(self) -> int:
        """Rows of the reference whose question the candidate has too, altered ones included."""
        return self.num_rows[0] - len(self.lost)

    @property
    def same_rows(self) -> bool:
        """The same questions at the same places."""
        unmatched = (self.lost, self.added, self.altered, self.repeated)
        return not any(map(len, unmatched)) and not self.num_moved


def compare_data_sets(reference: DataSet, candidate: DataSet) -> DataSetDiff | None:
    """Compare two data sets by the contents of their rows.

    Returns:
        None where one holds text and the other token ids: without the tokenizer they cannot be
        compared.
    """
    if (reference.prompts is None) != (candidate.prompts is None):
        return None
    hashes = row_hashes(reference), row_hashes(candidate)
    lost = np.flatnonzero(~np.isin(hashes[0], hashes[1]))
    added = np.flatnonzero(~np.isin(hashes[1], hashes[0]))
    altered, edit = _altered(reference, candidate, lost, added)
    lost, added = lost[~np.isin(lost, altered[:, 0])], added[~np.isin(added, altered[:, 1])]
    labels = _labels(reference, candidate, hashes)
    same_length = len(reference) == len(candidate)
    return DataSetDiff(
        num_rows=(len(reference), len(candidate)),
        lost=lost,
        added=added,
        altered=altered,
        edit=edit,
        repeated=_repeated(*hashes),
        num_moved=int((hashes[0] != hashes[1]).sum()) - len(altered)
        if same_length and not len(lost) and not len(added)
        else 0,
        other_labels=labels[0],
        lost_labels=labels[1],
        added_labels=labels[2],
    )


def _repeated(reference: Hashes, candidate: Hashes) -> Int64:
    ours, first, counts = np.unique(reference, return_index=True, return_counts=True)
    theirs, their_counts = np.unique(candidate, return_counts=True)
    _, at_a, at_b = np.intersect1d(ours, theirs, return_indices=True)
    rows: Int64 = np.sort(first[at_a[counts[at_a] != their_counts[at_b]]])
    return rows


def _altered(
    reference: DataSet, candidate: DataSet, lost: Int64, added: Int64
) -> tuple[Int64, ConstantEdit | None]:
    """Pair unmatched rows at one place; else look for an edit that all unmatched rows share."""
    nothing = np.zeros((0, 2), np.int64)
    if reference.prompts is None or candidate.prompts is None:
        return nothing, None
    places = np.intersect1d(lost, added)
    texts = [(normal(reference.prompts[i]), normal(candidate.prompts[i])) for i in places]
    alike = [_alike(a, b) for a, b in texts]
    rows = places[np.array(alike, np.bool_)] if alike else places[:0]
    ours, theirs = (rows, rows) if len(rows) else (lost, added)
    edit = find_constant_edit(
        _texts(reference.prompts, ours[:_SAMPLES]), _texts(candidate.prompts, theirs[:_SAMPLES])
    )
    return np.stack([rows, rows], axis=1) if len(rows) else nothing, edit


def _texts(prompts: Sequence[str], rows: Int64) -> list[str]:
    return [normal(prompts[row]) for row in rows.tolist()]


def _alike(a: str, b: str) -> bool:
    pieces = [
        {text[i : i + _SHINGLE] for i in range(max(1, len(text) - _SHINGLE + 1))} for text in (a, b)
    ]
    return len(pieces[0] & pieces[1]) > _SAME_ROW * min(map(len, pieces))


def _labels(
    reference: DataSet, candidate: DataSet, hashes: tuple[Hashes, Hashes]
) -> tuple[Int64, Int64, Int64]:
    """Compare labels of questions that stand once in either data set."""
    ours, at_a, counts_a = np.unique(hashes[0], return_index=True, return_counts=True)
    theirs, at_b, counts_b = np.unique(hashes[1], return_index=True, return_counts=True)
    _, a, b = np.intersect1d(ours, theirs, return_indices=True)
    once = (counts_a[a] == 1) & (counts_b[b] == 1)
    rows = sorted(zip(at_a[a[once]].tolist(), at_b[b[once]].tolist(), strict=True))
    other, lost, added = [], [], []
    for row, twin in rows:
        label, label_b = _label(reference, row), _label(candidate, twin)
        if label is not None and label_b is None:
            lost.append((row, twin))
        elif label is None and label_b is not None:
            added.append((row, twin))
        elif label != label_b:
            other.append((row, twin))
    if len(other) == len(rows) > 1:
        other = []  # every single one differs: the two files write labels otherwise
    pairs = [np.array(found, np.int64).reshape(-1, 2) for found in (other, lost, added)]
    return pairs[0], pairs[1], pairs[2]


def _label(data: DataSet, row: int) -> str | tuple[int, ...] | None:
    if data.labels is not None:
        label = data.labels[row]
        return label.strip() if label and label.strip() else None
    if data.label_ids is not None:
        return tuple(data.label_ids[row].tolist()) or None
    return None
