"""Which rows and columns of which canonical tensors one rank's parameters hold.

The canonical tensors of sketches are those that transformers 5 has in memory: of an
expert layer all gate and up projections are one tensor, and all down projections another. A
layout that keeps experts apart adds its own to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from align.layout.address import is_copy, row_labels
from align.layout.dialect import STACKED, Dialect
from align.layout.entries import Entry, Piece, Place, entries, whole
from align.layout.family import Family
from align.layout.ops import Chain, Fold, Op, Transpose
from align.layout.sizes import Sizes

Cut = tuple[str, Tensor, int, int]
"""Canonical name, elements, and the first row and first column of them in the canonical tensor."""

HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Some rows of a parameter, one after the other in a canonical tensor.

    Args:
        rows: int64, ascending; their places in the parameter.
        first_row, first_column: where they begin in the canonical tensor.
    """

    name: str
    rows: Tensor
    first_row: int
    first_column: int

    def cut(self, block: Tensor, row: int, column: int) -> Cut | None:
        """Return what a block of the parameter holds of this part.

        Args:
            block: [rows, columns], or [elements] of a vector.
            row, column: where the block begins in the parameter.
        """
        places = torch.tensor([row, row + len(block)])
        start, end = torch.searchsorted(self.rows, places).tolist()
        if start == end:
            return None
        rows = self.rows[start:end] - row
        first, last = int(rows[0]), int(rows[-1])
        if last - first == end - start - 1:
            own = block[first : last + 1]
        else:
            own = block[rows.to(block.device)]
        return self.name, own, self.first_row + start, self.first_column + column


@dataclass(frozen=True, slots=True)
class RankWeight:
    """One parameter of a rank.

    Args:
        parts: those that no rank before it in the tensor-parallel group holds as well.
        is_expert: data parallelism over experts repeats it, not that over all the rest.
        turned: makes it of a matrix of the canonical rows, where it is none by itself.
    """

    parts: tuple[WeightPart, ...]
    is_expert: bool
    turned: Op | None = None

    def cuts(self, block: Tensor, row: int = 0, column: int = 0) -> Iterator[Cut]:
        """Return what a block of the parameter holds of the canonical tensors.

        Args:
            block: the whole parameter, or some of its rows and columns.
            row, column: where the block begins.
        """
        if self.turned is not None:
            (block,) = self.turned.inverse([block])
        if block.ndim > 2:
            block = block.flatten(0, -2)
        for part in self.parts:
            found = part.cut(block, row, column)
            if found is not None:
                yield found


def rank_weights(
    family: Family, sizes: Sizes, dialect: Dialect, place: Place, rank: int
) -> dict[str, RankWeight]:
    """Return every parameter one rank may have, by its name there.

    A head that is tied to the embedding is the embedding's copy and has no part of its own.
    """
    stacked = _stacked(family, sizes)
    return {
        entry.name: _weight(entry, rank, stacked, is_tied=sizes.tied)
        for entry in entries(family, sizes, dialect, place)
    }


def _stacked(family: Family, sizes: Sizes) -> dict[str, tuple[str, int]]:
    """Return canonical name and first row of each piece of a stack of experts."""
    found = {}
    for entry in entries(family, sizes, STACKED, whole(sizes)):
        row = 0
        for piece in entry.pieces if len(entry.pieces) > 1 else ():
            found[piece.name] = entry.name, row
            row += piece.shape[0]
    return found


def _weight(
    entry: Entry, rank: int, stacked: dict[str, tuple[str, int]], *, is_tied: bool
) -> RankWeight:
    rows, turned = _row_operation(entry.op)
    mixed = rows.forward(row_labels(entry, rank))[0].reshape(-1, 2)
    parts = tuple(
        _part(piece, mixed, number, rank, stacked)
        for number, piece in enumerate(entry.pieces)
        if not is_copy(piece, rank) and not (is_tied and piece.name == HEAD)
    )
    is_expert = ".mlp.experts." in entry.pieces[0].name
    return RankWeight(tuple(part for part in parts if len(part.rows)), is_expert, turned)


def _part(
    piece: Piece, mixed: Tensor, number: int, rank: int, stacked: dict[str, tuple[str, int]]
) -> WeightPart:
    rows = (mixed[:, 0] == number).nonzero().flatten()
    first = int(mixed[rows[0], 1]) if len(rows) else 0
    name, offset = stacked.get(piece.name, (piece.name, 0))
    column = 0
    if piece.shard.axis == 1:
        column = rank // piece.shard.copies * piece.shard.size(piece.shape[1])
    return WeightPart(name, rows, offset + first, column)


def _row_operation(op: Op) -> tuple[Op, Op | None]:
    """Split an operation into what moves rows and what turns the matrix of them."""
    if not isinstance(op, Chain):
        return op, None
    turns = tuple(one for one in op.ops if isinstance(one, Transpose | Fold))
    rows = tuple(one for one in op.ops if one not in turns)
    return Chain(rows), Chain(turns) if turns else None
