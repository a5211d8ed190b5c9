"""What is kept of a tensor, all of it additive: over micro-batches, shards and ranks.

A sketch is S = Rᵀ X C / sqrt(m c) with m = c = `SIDE`: R [rows, m] and C [features, c] hold ±1
by a hash of what each row and feature is, so ‖S_a - S_b‖ / ‖S_a‖ estimates the relative error of
the tensors themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumps.capture.sketch.float32 import full_float32
from dumps.capture.sketch.hash import digest, signs

SIDE = 16
ROW_SALT, COLUMN_SALT = 1, 2
COUNTS = ("zeros", "nan", "positive_inf", "negative_inf", "bfloat16", "digest")
_DIGEST_SALT = 4


@dataclass
class Sums:
    """The sums of one address on its device.

    Args:
        order: place of its first tensor among all of the step, in the order they were computed.
        shape: of the first tensor.
        sketch: float32 [SIDE + 1, SIDE + 1]: the sketch unscaled, and the total in the corner.
        moments: float32 [3]: L2 norm, minimum, maximum.
        counts: int64 [len(COUNTS)].
    """

    order: int
    dtype: str
    shape: tuple[int, ...]
    sketch: Tensor
    moments: Tensor
    counts: Tensor
    num_elements: int

    def add(self, other: Sums) -> None:
        """Add another part of the same address."""
        self.sketch += other.sketch
        own, new = self.moments, other.moments
        self.moments = torch.stack(
            [
                torch.hypot(own[0], new[0]),
                torch.minimum(own[1], new[1]),
                torch.maximum(own[2], new[2]),
            ]
        )
        self.counts += other.counts
        self.num_elements += other.num_elements


@dataclass
class Columns:
    """The signs of feature indices, made once a width."""

    _made: dict[tuple[int, int, torch.device], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def of(self, width: int, device: torch.device, first: int = 0) -> tuple[Tensor, Tensor]:
        """Return [width, SIDE + 1] with a last column of ones, and the digest of the features.

        Args:
            first: canonical index of the first feature, for a shard.
        """
        key = (width, first, device)
        if key not in self._made:
            keys = torch.arange(first, first + width, device=device)
            made = torch.cat(
                [signs(keys, COLUMN_SALT, SIDE), torch.ones(width, 1, device=device)], 1
            )
            self._made[key] = made, digest(keys, _DIGEST_SALT)
        return self._made[key]


def sums_of(
    tensor: Tensor,
    rows: Tensor,
    row_digest: Tensor,
    columns: tuple[Tensor, Tensor],
    *,
    order: int,
    shape: tuple[int, ...],
    counts_bfloat16: bool = False,
) -> Sums:
    """Sketch and sum up one tensor.

    Args:
        tensor: [rows, features], of any dtype.
        rows: signs [rows, SIDE + 1].
        row_digest: int64 of the rows' keys.
        columns: from `Columns.of`.
        counts_bfloat16: count the entries that bfloat16 holds exactly.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    with full_float32(tensor.device):
        values = tensor.detach().to(torch.float32)
        sketch = rows.T @ (values @ columns[0])
        norm = torch.linalg.vector_norm(values)
        least, most = torch.aminmax(values) if values.numel() else (norm, norm)
        counts = _counts(values, norm, row_digest * columns[1], counts_bfloat16)
        return Sums(
            order, dtype, shape, sketch, torch.stack([norm, least, most]), counts, values.numel()
        )


def _counts(values: Tensor, norm: Tensor, digest: Tensor, counts_bfloat16: bool) -> Tensor:
    nothing = torch.zeros((), dtype=torch.int64, device=values.device)
    zeros = values.numel() - torch.count_nonzero(values)
    special = [nothing] * 3
    # a finite norm rules them out; on an accelerator asking for it would wait for the device
    if values.device.type != "cpu" or not bool(torch.isfinite(norm)):
        special = [values.isnan().sum(), values.isposinf().sum(), values.isneginf().sum()]
    exact = (values == values.to(torch.bfloat16)).sum() if counts_bfloat16 else nothing
    return torch.stack([zeros, *special, exact, digest])
