"""Errors of one whole tensor by token and head, or by token and block of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from align.core.figure import Grid
from align.core.text import Text
from align.layers.tensors_affected import SMALL, differences, is_in_heads
from align.layers.tensors_pair import WholePair

if TYPE_CHECKING:
    import numpy.typing as npt

    Float64 = npt.NDArray[np.float64]
    Int64 = npt.NDArray[np.int64]

MOST_BLOCKS = 32
"""Of features, where they are in no heads."""
MOST_COLUMNS = 64


def error_grid(pair: WholePair, limit: float, head_dim: int | None) -> Grid | None:
    """Return the relative error of every head at every position in a token's own sequence.

    A cell is ‖error‖ / ‖reference‖ over its features and tokens; one far smaller than the usual
    cell is measured by that, so that zeros beside zeros do not stand out.

    Args:
        limit: relative error that rounding explains.
        head_dim: features of one attention head, None where it is not known.

    Returns:
        None where the tensor is one cell.
    """
    own, error = differences(pair)
    count = own.shape[1]
    in_heads = is_in_heads(pair, head_dim)
    ends = _ends(count, head_dim if in_heads and head_dim else -(-count // MOST_BLOCKS))
    number, columns = _columns(pair.places)
    if len(ends) * len(columns) < 2:
        return None
    sizes = [_cells(values**2, ends, number, len(columns)) for values in (error, own)]
    usual = float(sizes[1].mean())
    least = np.maximum(sizes[1], SMALL**2 * usual)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.sqrt(np.where(sizes[0] == 0, 0.0, sizes[0] / least))
    starts = [0, *ends[:-1]]
    rows = (
        [str(head) for head in range(len(ends))]
        if in_heads
        else [
            _span(a + pair.first_feature, b - 1 + pair.first_feature)
            for a, b in zip(starts, ends, strict=True)
        ]
    )
    name, phase, _ = pair.address
    what = Text("head", "头") if in_heads else Text("features", "特征")
    place = _place_text(pair)
    return Grid(
        f"{phase}_cells",
        Text(
            f"Error of {name} ({phase}) by {what.en} and {place.en}",
            f"{name}（{phase}）的误差：按{what.zh}与{place.zh}",
        ),
        what,
        place,
        tuple(rows),
        columns,
        tuple(tuple(float(f"{value:.4g}") for value in row) for row in errors.tolist()),
        limit,
    )


def _place_text(pair: WholePair) -> Text:
    if (pair.places < 0).any():
        return Text("token", "token 序号")
    return Text("position in the sequence", "序列内位置")


def _ends(count: int, width: int) -> list[int]:
    return [*range(width, count, width), count]


def _columns(places: Int64) -> tuple[Int64, tuple[str, ...]]:
    """Return the column of every row, and the columns' names; rows are as they are if unplaced."""
    along = np.arange(len(places)) if (places < 0).any() else places
    distinct = np.unique(along)
    groups = np.array_split(distinct, min(MOST_COLUMNS, len(distinct)))
    starts = np.array([group[0] for group in groups])
    names = tuple(_span(int(group[0]), int(group[-1])) for group in groups)
    return np.searchsorted(starts, along, side="right") - 1, names


def _cells(squares: Float64, ends: list[int], number: Int64, columns: int) -> Float64:
    """Sum squares [tokens, features] over blocks of features and columns of tokens."""
    blocks = np.add.reduceat(squares, [0, *ends[:-1]], axis=1)
    found = np.zeros((columns, len(ends)))
    np.add.at(found, number, blocks)
    return found.T


def _span(first: int, last: int) -> str:
    return f"{first}-{last}" if last > first else str(first)
