"""What an algorithm's loss function returns for one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class ActorLoss:
    """The loss of a micro-batch, scaled to its share of the mini-batch.

    Args:
        total: scalar with gradient, what is differentiated.
        summed: metrics whose shares add up to the mini-batch's (losses).
        averaged: metrics averaged over micro-batches, weighted by tokens (fractions, KL).
    """

    total: Tensor
    summed: Mapping[str, float] = field(default_factory=dict)
    averaged: Mapping[str, float] = field(default_factory=dict)
