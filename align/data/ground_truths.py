"""Whether the same prompts carry the same labels in both runs' dumps."""

from __future__ import annotations

import numpy as np

from align.core.finding import Finding, Side
from align.data import findings
from dumps.store.rollout_index import EMPTY_TEXT
from dumps.store.rollout_pair import RolloutPair, SideRows


def differing_ground_truths(pair: RolloutPair) -> tuple[Finding, ...]:
    """Compare the labels of prompts that each side always gives one and the same label."""
    lost = _lost_labels(pair)
    if lost is not None:
        return (lost,)
    labels = []
    for side in (pair.reference, pair.candidate):
        rows = side.take((side.prompt >= 0) & (side.ground_truth >= 0))
        prompts, first, inverse = np.unique(rows.prompt, return_index=True, return_inverse=True)
        one_label = np.ones(len(prompts), np.bool_)
        one_label[inverse[rows.ground_truth != rows.ground_truth[first][inverse]]] = False
        labels.append((prompts[one_label], rows.take(first[one_label])))
    (prompts_a, rows_a), (prompts_b, rows_b) = labels
    common, at_a, at_b = np.intersect1d(prompts_a, prompts_b, return_indices=True)
    other = np.flatnonzero(rows_a.ground_truth[at_a] != rows_b.ground_truth[at_b])
    # Where every single label differs the two dumps write labels differently, as frameworks do.
    if not len(other) or len(other) == len(common):
        return ()
    quoted_a = rows_a.index.texts(rows_a.row[at_a[other[:1]]])
    quoted_b = rows_b.index.texts(rows_b.row[at_b[other[:1]]])
    return (findings.other_ground_truths(len(other), len(common), quoted_a[0], quoted_b[0]),)


def _lost_labels(pair: RolloutPair) -> Finding | None:
    """Find a side whose every label is empty while the other side has none that is."""
    sides = {Side.REFERENCE: pair.reference, Side.CANDIDATE: pair.candidate}
    shares = {side: _share_of_empty_labels(rows) for side, rows in sides.items()}
    if sorted(share for share in shares.values() if share is not None) != [0.0, 1.0]:
        return None
    quoted = [rows.index.texts(rows.row[:1])[0] for rows in sides.values()]
    lost = next(side for side, share in shares.items() if share == 1.0)
    return findings.lost_ground_truths(lost, len(sides[lost]), quoted[0], quoted[1])


def _share_of_empty_labels(rows: SideRows) -> float | None:
    """Return the share of labels without a character; None where the dump has no labels."""
    labels = rows.index.ground_truths[rows.index.ground_truth]
    labels = labels[labels != b""]
    return float((labels == EMPTY_TEXT).mean()) if len(labels) else None
