"""Fingerprints of weights: two numbers a parameter that add up over shards.

The sum, and the sum under signs derived from each element's index in the whole tensor, row-major.
Equal weights have equal fingerprints however they are sharded; permuted ones agree in the first
number and not in the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dumps.capture.gradients import local, plain_name, widest

_CHUNK = 1 << 22  # elements at a time: indices and signs take a few times the memory of this
_MIX = 0x9E3779B1  # odd; multiplied modulo 2**32


def weight_fingerprints(
    parameters: Iterable[tuple[str, nn.Parameter]],
) -> tuple[list[str], Tensor]:
    """Return names and [names, 2] fingerprints of what this rank holds."""
    names, rows = [], []
    with torch.no_grad():
        for name, parameter in parameters:
            start = _start(parameter)
            names.append(plain_name(name))
            rows.append(fingerprint(local(parameter).detach(), start, tuple(parameter.shape)))
    return names, torch.stack(rows) if rows else torch.zeros(0, 2)


def fingerprint(shard: Tensor, start: tuple[int, ...], whole: tuple[int, ...]) -> Tensor:
    """Return [2], sum and signed sum of a shard.

    Args:
        shard: a block of the whole tensor.
        start: index of the block's first element in the whole, an axis each.
        whole: shape of the whole tensor.
    """
    totals = torch.zeros(2, dtype=widest(shard), device=shard.device)
    if shard.numel() == 0:
        return totals
    block = shard.reshape(1) if shard.ndim == 0 else shard
    start, whole = (start, whole) if shard.ndim else ((0,), (1,))
    rows = max(1, _CHUNK // max(1, block[0].numel()))
    for first in range(0, len(block), rows):
        part = block[first : first + rows].to(totals.dtype)
        origin = (start[0] + first, *start[1:])
        totals[0] += part.sum()
        totals[1] += (part * signs(_indices(tuple(part.shape), origin, whole, part.device))).sum()
    return totals


def signs(index: Tensor) -> Tensor:
    """Return +1 or -1 for each whole number, by a hash of it."""
    mixed = (index & 0xFFFFFFFF) ^ (index >> 32)
    for shift in (16, 13):
        mixed = ((mixed ^ (mixed >> shift)) * _MIX) & 0xFFFFFFFF
    return 1 - 2 * ((mixed >> 16) & 1)


def _indices(
    shape: tuple[int, ...], origin: tuple[int, ...], whole: tuple[int, ...], device: torch.device
) -> Tensor:
    """Return int64 [shape], each element's row-major index in the whole tensor."""
    index = torch.zeros((1,) * len(shape), dtype=torch.int64, device=device)
    stride = 1
    for axis in reversed(range(len(shape))):
        steps = (torch.arange(shape[axis], device=device) + origin[axis]) * stride
        index = index + steps.view([-1 if a == axis else 1 for a in range(len(shape))])
        stride *= whole[axis]
    return index


def _start(parameter: Any) -> tuple[int, ...]:
    """Return where this rank's block of a parameter starts."""
    if not hasattr(parameter, "to_local"):
        return (0,) * int(parameter.ndim)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return tuple(map(int, offset))
