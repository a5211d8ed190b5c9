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

from dumps.capture.device import block_elements, full_float32, may_be_special, norm_of
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
        order: place of its first tensor among all of the step, in the order they were computed.
        shape: of the first tensor.
        digest: int64, of the (row, feature) pairs.
        sketch: float32 [SIDE, SIDE], not scaled.
        l2, minimum, maximum, total: float32.
        nonzero: int64.
        special: int64 [3], NaN, infinities and negative infinities; None where there are none.
        bfloat16: int64, how many elements bfloat16 holds exactly; None where not counted.
    """

    order: int
    dtype: str
    shape: tuple[int, ...]
    num_elements: int
    digest: Tensor
    sketch: Tensor
    l2: Tensor
    minimum: Tensor
    maximum: Tensor
    total: Tensor
    nonzero: Tensor
    special: Tensor | None
    bfloat16: Tensor | None

    def add(self, other: Sums) -> None:
        """Add another part of the same address."""
        self.num_elements += other.num_elements
        self.digest = self.digest + other.digest
        self.sketch = self.sketch + other.sketch
        self.l2 = torch.hypot(self.l2, other.l2)
        self.minimum = torch.minimum(self.minimum, other.minimum)
        self.maximum = torch.maximum(self.maximum, other.maximum)
        self.total = self.total + other.total
        self.nonzero = self.nonzero + other.nonzero
        self.special = _added(self.special, other.special)
        self.bfloat16 = _added(self.bfloat16, other.bfloat16)


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


def sums_of(
    tensor: Tensor,
    rows: Signs,
    columns: Signs,
    *,
    order: int,
    shape: tuple[int, ...],
    counts_bfloat16: bool = False,
) -> Sums:
    """Sketch and sum up one tensor, a block of rows at a time.

    Args:
        tensor: [rows, features], of any dtype.
        rows, columns: from `IndexSigns`, or of tokens.
        counts_bfloat16: count the entries that bfloat16 holds exactly.
    """
    own = tensor.detach()
    digest_of_all = rows[1] * columns[1]
    dtype = str(own.dtype).removeprefix("torch.")
    length = max(1, block_elements(own.device) // max(1, own.shape[1]))
    made: Sums | None = None
    for start in range(0, max(1, len(own)), length):
        end = start + length
        values = _values(own[start:end], rows[0][start:end], columns[0], counts_bfloat16)
        if made is None:
            made = Sums(order, dtype, shape, own.numel(), digest_of_all, *values)
        else:
            made.add(Sums(order, dtype, shape, 0, torch.zeros_like(digest_of_all), *values))
    assert made is not None
    return made


def _values(block: Tensor, rows: Tensor, columns: Tensor, counts_bfloat16: bool) -> tuple[Any, ...]:
    """Return a block's sums, in the order of `Sums`."""
    with full_float32(block.device):
        values = block.to(torch.float32)
        sketch = rows.T @ (values @ columns)
        l2 = norm_of(values)
        least, most = torch.aminmax(values) if values.numel() else (l2, l2)
        special = exact = None
        if may_be_special(l2):
            kinds = (values.isnan(), values.isposinf(), values.isneginf())
            special = torch.stack([kind.sum() for kind in kinds])
        if counts_bfloat16:
            exact = (values == values.to(torch.bfloat16)).sum()
        return sketch, l2, least, most, values.sum(), torch.count_nonzero(values), special, exact


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one + other if one is not None and other is not None else one if other is None else other
