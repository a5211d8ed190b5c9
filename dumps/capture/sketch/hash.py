"""The one hash behind every sign: splitmix64 in wrapping int64 arithmetic, equal on every device.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; torch's
int64 product and sum wrap modulo 2**64 on every backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIDE = 16
"""Rows and columns of a sketch."""

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def splitmix64(values: Tensor) -> Tensor:
    """Hash each int64."""
    state = values + GOLDEN
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def signs(keys: Tensor, salt: int, count: int) -> Tensor:
    """Return ±1 for each key: bit j of its hash decides column j.

    Args:
        keys: int64 [n].
        salt: rows and columns of a sketch take different ones.
        count: at most 64.

    Returns:
        float32 [n, count].
    """
    hashed = splitmix64(splitmix64(keys) + salt)
    bits = torch.arange(count, device=keys.device)
    return ((hashed[:, None] >> bits) & 1).to(torch.float32) * 2 - 1


def digest(keys: Tensor, salt: int) -> Tensor:
    """Return one int64 for a set of keys; digests of disjoint sets add up, whatever the order."""
    return splitmix64(splitmix64(keys) + salt).sum()


def _shifted(values: Tensor, count: int) -> Tensor:
    """Shift right without the sign."""
    return (values >> count) & ((1 << (64 - count)) - 1)
