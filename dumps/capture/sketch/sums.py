"""What is kept of a tensor, all of it additive: over micro-batches, shards and ranks.

A sketch is S = Rᵀ X C / sqrt(m c) with m = c = `SIDE`: R [rows, m] and C [features, c] hold ±1
by a hash of what each row and feature is, so ‖S_a - S_b‖ / ‖S_a‖ estimates the relative error of
the tensors themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dumps.capture.device import (
    block_elements,
    full_float32,
    is_full_float32,
    may_be_special,
    product,
    square_sum,
)
from dumps.capture.sketch.hash import digest, signs

SIDE = 16
ROW_SALT, COLUMN_SALT = 1, 2
ROW_DIGEST_SALT, COLUMN_DIGEST_SALT = 3, 4

Signs = tuple[Tensor, Tensor]
"""float32 [n, SIDE] of n rows or features, and the digest of what they are."""


@dataclass
class Sums:
    """The sums of one address, each on the tensor's device.

    Args:
        num_elements: of the tensor.
        digest: int64, of the (row, feature) pairs.
        sketch: float32 [SIDE, SIDE], not scaled.
        squares, minimum, maximum, total: float32; the first is the sum of squares.
        special: int64 [3], NaN, infinities and negative infinities; None where there are none.
        exact: int64 [2], zeros and elements that bfloat16 holds; None where not counted.
        order: place of its first tensor among all of the step, in the order they were computed.
        shape: of the first tensor.
    """

    dtype: str
    num_elements: int
    digest: Tensor
    sketch: Tensor
    squares: Tensor
    minimum: Tensor
    maximum: Tensor
    total: Tensor
    special: Tensor | None
    exact: Tensor | None
    order: int = 0
    shape: tuple[int, ...] = ()

    def add(self, other: Sums) -> None:
        """Add another part of the same address."""
        self.num_elements += other.num_elements
        self.digest = self.digest + other.digest
        self.sketch = self.sketch + other.sketch
        self.squares = self.squares + other.squares
        self.minimum = torch.minimum(self.minimum, other.minimum)
        self.maximum = torch.maximum(self.maximum, other.maximum)
        self.total = self.total + other.total
        self.special = _added(self.special, other.special)
        self.exact = _added(self.exact, other.exact)


@dataclass
class IndexSigns:
    """The signs of rows and features that are known by their index, made once."""

    _made: dict[tuple[int, int, int, torch.device], Signs] = field(default_factory=dict)

    def rows(self, first: int, count: int, device: torch.device) -> Signs:
        """Return the signs of a weight's rows, from its canonical row ``first`` on."""
        return self._of(first, count, ROW_SALT, ROW_DIGEST_SALT, device)

    def columns(self, first: int, count: int, device: torch.device) -> Signs:
        """Return the signs of features, from the canonical one ``first`` on."""
        return self._of(first, count, COLUMN_SALT, COLUMN_DIGEST_SALT, device)

    def _of(
        self, first: int, count: int, salt: int, digest_salt: int, device: torch.device
    ) -> Signs:
        key = first, count, salt, device
        if key not in self._made:
            keys = torch.arange(first, first + count, device=device)
            self._made[key] = signs(keys, salt, SIDE), digest(keys, digest_salt)
        return self._made[key]


def sums_of(tensor: Tensor, rows: Signs, columns: Signs, *, counts_bfloat16: bool = False) -> Sums:
    """Sketch and sum up one tensor, a block of rows at a time.

    Args:
        tensor: [rows, features], of any dtype.
        rows, columns: from `IndexSigns`, or of tokens.
        counts_bfloat16: count the entries that bfloat16 holds exactly, and zeros.
    """
    own = tensor.detach()
    digest_of_all = rows[1] * columns[1]
    dtype = str(own.dtype).removeprefix("torch.")
    length = max(1, block_elements(own.device) // max(1, own.shape[1]))
    made = Sums(
        dtype,
        own.numel(),
        digest_of_all,
        *_values(own[:length], rows[0][:length], columns[0], counts_bfloat16),
    )
    for start in range(length, len(own), length):
        end = start + length
        values = _values(own[start:end], rows[0][start:end], columns[0], counts_bfloat16)
        made.add(Sums(dtype, 0, torch.zeros_like(digest_of_all), *values))
    return made


def _values(block: Tensor, rows: Tensor, columns: Tensor, counts_bfloat16: bool) -> tuple[Any, ...]:
    """Return a block's sums, in the order of `Sums`."""
    if not is_full_float32(block.device):
        with full_float32(block.device):
            return _values(block, rows, columns, counts_bfloat16)
    values = block.to(torch.float32)
    sketch = rows.T @ product(values, columns)
    squares = square_sum(values)
    special = exact = None
    if may_be_special(squares):
        kinds = (values.isnan(), values.isposinf(), values.isneginf())
        special = torch.stack([kind.sum() for kind in kinds])
    if counts_bfloat16:
        held = (values == 0, values == values.to(torch.bfloat16))
        exact = torch.stack([which.sum() for which in held])
    return sketch, squares, *torch.aminmax(values), values.sum(), special, exact


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one + other if one is not None and other is not None else one if other is None else other
