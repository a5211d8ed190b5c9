"""Rows of unequal length that both sides compute with."""

from __future__ import annotations

import torch
from torch import Tensor

VOCAB = 96
LENGTHS = (16, 11, 7, 13)
WIDTH, SIZE = max(LENGTHS), len(LENGTHS)
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.01
WHOLE = ("*.kv_a_proj_with_mqa",)  # modules kept whole besides their sketches
EPSILON = 1e-3  # about as large as gradients here: an update is then no sign, which rounding turns


def padded(side: str) -> tuple[Tensor, Tensor]:
    """Return int64 [rows, WIDTH] ids and mask, padded on one side."""
    generator = torch.Generator().manual_seed(3)
    ids, attended = torch.zeros(2, SIZE, WIDTH, dtype=torch.int64)
    for row, length in enumerate(LENGTHS):
        place = slice(0, length) if side == "right" else slice(WIDTH - length, None)
        ids[row, place] = torch.randint(0, VOCAB, (length,), generator=generator)
        attended[row, place] = 1
    return ids, attended
