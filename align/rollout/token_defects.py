"""What can be wrong with a row of token ids, and where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from align.rollout.token_row import Ids

if TYPE_CHECKING:
    from align.rollout.token_rows import EngineRow


class Defect(str, Enum):
    """A broken invariant; the value ends the finding's id."""

    EOS_MISSING = "eos_missing"
    EOS_FAKE = "eos_fake"
    AFTER_EOS = "after_eos"
    RETOKENISED = "retokenised"
    RESPONSE_DIFFERS = "response_differs"
    IDS_BEYOND_VOCABULARY = "ids_beyond_vocabulary"
    POSITIONS_ROUNDED = "position_ids_rounded"
    POSITIONS_DUPLICATED = "position_ids_duplicated"
    POSITIONS_LEFT_PADDING = "position_ids_left_padding"
    PADDING_SIDE = "padding_side"
    PADDING_INSIDE = "padding_inside"
    MASK_SHIFTED = "mask_shifted"
    LABELS_DIFFER = "labels_differ"
    PACKED_BOUNDARIES = "packed_boundaries"
    PREFIX_BROKEN = "prefix_broken"


@dataclass(frozen=True, slots=True)
class Broken:
    """One row that breaks an invariant.

    Args:
        step: training step; None where not recorded.
        row: 0-based row of its batch.
        expected, found: the ids, positions or mask around the first difference.
        column: first column that differs, counted within the tensor ``tensor``.
        engine: the engine's row where the check is against it.
    """

    defect: Defect
    step: int | None
    source: str
    row: int
    tensor: str
    column: int
    expected: Ids
    found: Ids
    engine: EngineRow | None = None


def first_difference(a: Ids, b: Ids) -> int:
    """Return the first place at which two sequences differ, or the end of the shorter."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
