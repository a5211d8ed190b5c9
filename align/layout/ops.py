"""Invertible operations between the tensors of two layouts, as small data objects.

Each takes a list of tensors to a list of tensors and back, bit for bit. They only move elements, so
the same object turns weights, gradients, and index tensors (which element lies where) alike. Axis 0
is the feature axis: a bias or a list of feature indices is a tensor without the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Tensors = list[Tensor]


class Op(Protocol):
    """What every operation can do; ``inverse`` undoes ``forward`` exactly."""

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        """Return the tensors of the other layout."""

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        """Return the tensors that ``forward`` was given."""


@dataclass(frozen=True, slots=True)
class Rename:
    """The same tensors under other names."""

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        return list(tensors)

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        return list(tensors)


@dataclass(frozen=True, slots=True)
class Chain:
    """Operations one after the other."""

    ops: tuple[Op, ...]

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        for op in self.ops:
            tensors = op.forward(tensors)
        return list(tensors)

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        for op in reversed(self.ops):
            tensors = op.inverse(tensors)
        return list(tensors)


@dataclass(frozen=True, slots=True)
class Join:
    """Every ``len(ratio)`` tensors joined along axis 0; their sizes stand in this ratio."""

    ratio: tuple[int, ...]

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        width = len(self.ratio)
        return [torch.cat(list(tensors[i : i + width])) for i in range(0, len(tensors), width)]

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        return [part for tensor in tensors for part in self._split(tensor)]

    def _split(self, tensor: Tensor) -> Sequence[Tensor]:
        unit = tensor.shape[0] // sum(self.ratio)
        return torch.split(tensor, [unit * share for share in self.ratio])


@dataclass(frozen=True, slots=True)
class GroupHeads:
    """Query, key and value as one tensor of query groups: [q_0 … q_{r-1}, k, v] in each.

    Args:
        heads: query heads in the tensor.
        groups: query groups, which are key heads, in it.
    """

    heads: int
    groups: int

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        tail = tensors[0].shape[1:]
        grouped = [t.reshape(self.groups, t.shape[0] // self.groups, *tail) for t in tensors]
        return [torch.cat(grouped, 1).reshape(sum(t.shape[0] for t in tensors), *tail)]

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        (whole,) = tensors
        tail, num_query = whole.shape[1:], self.heads // self.groups
        head_dim = whole.shape[0] // (self.heads + 2 * self.groups)
        grouped = whole.reshape(self.groups, (num_query + 2) * head_dim, *tail)
        parts = torch.split(grouped, [num_query * head_dim, head_dim, head_dim], 1)
        return [p.reshape(self.groups * p.shape[1], *tail) for p in parts]


@dataclass(frozen=True, slots=True)
class Stack:
    """All tensors, of equal shape, as one with a new first axis."""

    count: int

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        return [torch.stack(list(tensors))]

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        return list(tensors[0].unbind(0))


@dataclass(frozen=True, slots=True)
class Transpose:
    """Each tensor with its last two axes exchanged."""

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        return [tensor.transpose(-1, -2).contiguous() for tensor in tensors]

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        return self.forward(tensors)


@dataclass(frozen=True, slots=True)
class Fold:
    """One tensor [n, a, b] seen as a matrix, its memory untouched.

    Args:
        count: n, the experts.
        rows: "inner" gives [a, n·b] (Megatron's weight1), "outer" [n·a, b] (its weight2).
    """

    count: int
    rows: str

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        (whole,) = tensors
        num_rows = whole.shape[1] if self.rows == "inner" else self.count * whole.shape[1]
        return [whole.reshape(num_rows, whole.numel() // max(num_rows, 1))]

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        (whole,) = tensors
        num_rows, width = whole.shape
        if self.rows == "inner":
            return [whole.reshape(self.count, num_rows, width // self.count)]
        return [whole.reshape(self.count, num_rows // self.count, width)]


@dataclass(frozen=True, slots=True)
class Pad:
    """Rows of zeros at the end, as vocabularies have them.

    Args:
        rows: of the tensor without padding.
        padded: with it.
    """

    rows: int
    padded: int

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        (whole,) = tensors
        empty = whole.new_zeros((self.padded - self.rows, *whole.shape[1:]))
        return [torch.cat([whole, empty])]

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        return [tensors[0][: self.rows]]


@dataclass(frozen=True, slots=True)
class Tie:
    """Two names of one tensor."""

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        """Keep the first.

        Raises:
            ValueError: The two differ, so that one cannot stand for both.
        """
        first, second = tensors
        if not torch.equal(first, second):
            raise ValueError("tied tensors differ")
        return [first]

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        return [tensors[0], tensors[0]]


@dataclass(frozen=True, slots=True)
class Shard:
    """One tensor cut along an axis for the ranks of a tensor-parallel group.

    Args:
        axis: that is cut, None where every rank holds all.
        ranks: in the group.
        units: what is indivisible along the axis, such as key heads; fewer units than ranks are
            replicated, as vLLM does. 0: any size that the ranks divide.
    """

    axis: int | None
    ranks: int
    units: int = 0

    @property
    def copies(self) -> int:
        """How many neighbouring ranks hold the same piece."""
        return max(1, self.ranks // self.units) if self.units else 1

    def forward(self, tensors: Sequence[Tensor]) -> Tensors:
        (whole,) = tensors
        if self.axis is None:
            return [whole] * self.ranks
        pieces = whole.chunk(self.ranks // self.copies, self.axis)
        return [piece for piece in pieces for _ in range(self.copies)]

    def inverse(self, tensors: Sequence[Tensor]) -> Tensors:
        if self.axis is None or len(tensors) == 1:
            return [tensors[0]]
        return [torch.cat(list(tensors[:: self.copies]), self.axis)]

    def size(self, whole: int) -> int:
        """Return the length of a rank's piece along the axis."""
        return whole if self.axis is None else whole * self.copies // self.ranks

    def divides(self, whole: int) -> bool:
        """Tell whether every rank gets an equal piece of whole units."""
        if self.axis is None or self.ranks == 1:
            return True
        pieces = self.ranks // self.copies
        even = (self.units or whole) % pieces == 0 and whole % pieces == 0
        return even and self.ranks % self.copies == 0
