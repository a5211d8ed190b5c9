"""What is kept of a tensor, all of it additive: over micro-batches, shards and ranks.

A sketch is S = Rᵀ X C / sqrt(m c) with m = c = `SIDE`: R [rows, m] and C [features, c] hold ±1
by a hash of what each row and feature is, so ‖S_a - S_b‖ / ‖S_a‖ estimates the relative error of
the tensors themselves. A further column of ones in R and C gives the sum over all elements.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumps.capture.device import (
    block_elements,
    extremes,
    full_float32,
    is_full_float32,
    may_be_special,
    square_sum,
)
from dumps.capture.sketch.hash import SIDE, digest, signs
from dumps.capture.sketch.rooms import ANYWHERE, Room

ROW_SALT, COLUMN_SALT = 1, 2
ROW_DIGEST_SALT, COLUMN_DIGEST_SALT = 3, 4

Signs = tuple[Tensor, Tensor]
"""float32 [SIDE + 1, n] of n rows or [n, SIDE + 1] of n features (`signs_and_one`), and the digest
of what they are."""


@dataclass
class Sums:
    """The sums of one address, each on the tensor's device.

    Args:
        num_elements: of the tensor.
        digest: int64, of the (row, feature) pairs.
        products: float32 [SIDE + 1, SIDE + 1], with the signs and ones of rows and features.
        squares, minimum, maximum: float32; the first is the sum of squares.
        special: int64 [3], NaN, infinities and negative infinities; None where there are none.
        exact: int64 [2], zeros and elements that bfloat16 holds; None where not counted.
        order: place of its first tensor among all of the step, in the order they were computed.
        shape: of the first tensor.
    """

    dtype: str
    num_elements: int
    digest: Tensor
    products: Tensor
    squares: Tensor
    minimum: Tensor
    maximum: Tensor
    special: Tensor | None
    exact: Tensor | None
    order: int = 0
    shape: tuple[int, ...] = ()

    @property
    def sketch(self) -> Tensor:
        """float32 [SIDE, SIDE], not scaled."""
        return self.products[:SIDE, :SIDE]

    @property
    def total(self) -> Tensor:
        """float32, the sum of all elements."""
        return self.products[SIDE, SIDE]

    def add(self, other: Sums) -> None:
        """Add another part of the same address."""
        self.num_elements += other.num_elements
        self.digest = self.digest + other.digest
        self.products = self.products + other.products
        self.squares = self.squares + other.squares
        self.minimum = torch.minimum(self.minimum, other.minimum)
        self.maximum = torch.maximum(self.maximum, other.maximum)
        self.special = _added(self.special, other.special)
        self.exact = _added(self.exact, other.exact)

    def take_in(self, other: Sums) -> None:
        """Add another block of the same tensor, in place: no other address may share these sums."""
        self.num_elements += other.num_elements
        self.products += other.products
        self.squares += other.squares
        torch.minimum(self.minimum, other.minimum, out=self.minimum)
        torch.maximum(self.maximum, other.maximum, out=self.maximum)
        self.special = _added(self.special, other.special)
        self.exact = _added(self.exact, other.exact)


@dataclass
class IndexSigns:
    """The signs of rows and features that are known by their index, made once."""

    _made: dict[tuple[int, int, int, torch.device], Signs] = field(default_factory=dict)
    _digests: dict[tuple[int, int], tuple[Tensor, Signs, Signs]] = field(default_factory=dict)

    def rows(self, first: int, count: int, device: torch.device) -> Signs:
        """Return the signs of a weight's rows, from its canonical row ``first`` on."""
        return self._of(first, count, ROW_SALT, ROW_DIGEST_SALT, device)

    def columns(self, first: int, count: int, device: torch.device) -> Signs:
        """Return the signs of features, from the canonical one ``first`` on."""
        return self._of(first, count, COLUMN_SALT, COLUMN_DIGEST_SALT, device)

    def digest(self, rows: Signs, columns: Signs) -> Tensor:
        """Return the digest of all pairs of a row and a feature, made once."""
        key = id(rows[1]), id(columns[1])
        found = self._digests.get(key)
        if found is None:  # what it is made of is kept, so that its ids are no other's
            found = self._digests[key] = rows[1] * columns[1], rows, columns
        return found[0]

    def _of(
        self, first: int, count: int, salt: int, digest_salt: int, device: torch.device
    ) -> Signs:
        key = first, count, salt, device
        found = self._made.get(key)
        if found is None:
            keys = torch.arange(first, first + count, device=device)
            own = signs_and_one(keys, salt)
            own = own.T.contiguous() if salt == ROW_SALT else own
            found = self._made[key] = own, digest(keys, digest_salt)
        return found


def signs_and_one(keys: Tensor, salt: int) -> Tensor:
    """Return float32 [n, SIDE + 1]: the signs of each of n keys, and a one."""
    own = signs(keys, salt, SIDE)
    return torch.cat([own, torch.ones_like(own[:, :1])], 1)


def sums_of(
    tensor: Tensor,
    rows: Signs,
    columns: Signs,
    *,
    counts_bfloat16: bool = False,
    digest_of_all: Tensor | None = None,
    room: Room = ANYWHERE,
) -> Sums:
    """Sketch and sum up one tensor, a block of rows at a time.

    Args:
        tensor: [rows, features], of any dtype.
        rows, columns: from `IndexSigns`, or of tokens.
        counts_bfloat16: count the entries that bfloat16 holds exactly, and zeros.
        digest_of_all: of rows and columns, if it is known.
        room: where the results go.
    """
    own = tensor.detach() if tensor.requires_grad else tensor
    known = rows[1] * columns[1] if digest_of_all is None else digest_of_all
    device, num_rows = own.device, len(own)
    num_blocks = min(num_rows, -(-own.numel() // block_elements(device)))
    with nullcontext() if is_full_float32(device) else full_float32(device):
        if num_blocks < 2:
            return _sums(own, rows[0], columns[0], known, counts_bfloat16, room)
        length = -(-num_rows // num_blocks)
        blocks = zip(torch.split(own, length), torch.split(rows[0], length, 1), strict=True)
        made = _sums(*next(blocks), columns[0], known, counts_bfloat16, room)
        for block in blocks:
            made.take_in(_sums(*block, columns[0], known, counts_bfloat16, ANYWHERE))
    return made


def _sums(
    block: Tensor,
    rows: Tensor,
    columns: Tensor,
    digest_of_all: Tensor,
    counts_bfloat16: bool,
    room: Room,
) -> Sums:
    """Return the sums of a block under the digest of the whole tensor."""
    values = block if block.dtype is torch.float32 else block.to(torch.float32)
    if len(values) < len(rows):
        products = torch.mm(rows, values.mm(columns), out=room.products)
    else:  # the smaller product between the two
        products = torch.mm(rows.mm(values), columns, out=room.products)
    squares = square_sum(values, room.squares)
    minimum, maximum = extremes(values, room.minimum, room.maximum)
    special = exact = None
    if may_be_special(squares):
        kinds = (values.isnan(), values.isposinf(), values.isneginf())
        special = torch.stack([kind.sum() for kind in kinds])
    if counts_bfloat16:
        held = (values == 0, values == values.to(torch.bfloat16))
        exact = torch.stack([which.sum() for which in held])
    return Sums(
        str(block.dtype)[len("torch.") :],
        block.numel(),
        digest_of_all,
        products,
        squares,
        minimum,
        maximum,
        special,
        exact,
    )


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one + other if one is not None and other is not None else one if other is None else other
