"""What the updates of one step compute with, micro-batch by micro-batch, and what they report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from align.stack import sharding
from align.stack.batch import TrainBatch, given


@dataclass
class UpdateLog:
    """Grows during the updates of one step.

    Args:
        micros: of this rank: rows of the trainer's batch, update, micro-batch, log_probs, entropys.
        metrics: one mapping an update.
    """

    micros: list[dict[str, Tensor]] = field(default_factory=list)
    metrics: list[Mapping[str, float]] = field(default_factory=list)

    def add_micro_batch(
        self, micro: TrainBatch, number: int, log_probs: Tensor, entropy: Tensor
    ) -> None:
        """Keep what a micro-batch's loss is computed from.

        Args:
            number: of the micro-batch within its update, from 0, over all ranks.
        """
        rows = given(micro.position)
        self.micros.append(
            {
                "rows": rows,
                "update": torch.full_like(rows, len(self.metrics)),
                "micro_batch": torch.full_like(rows, number),
                "log_probs": log_probs.detach(),
                "entropys": entropy.detach(),
            }
        )

    def end_update(self, metrics: Mapping[str, float]) -> None:
        """Keep what an update reports, after its micro-batches."""
        self.metrics.append(dict(metrics))

    def tensors(self) -> dict[str, Tensor]:
        """Return n visited rows of all ranks and u updates by name; nothing without an update.

        ``rows``, ``update``, ``micro_batch`` int64 [n]; ``log_probs``, ``entropys`` [n, r]; every
        metric float64 [u]. All ranks must call it.
        """
        own = [{name: tensor.cpu() for name, tensor in micro.items()} for micro in self.micros]
        micros = sharding.gather_list(own)
        if not micros:
            return {}
        joined = {name: torch.cat([micro[name] for micro in micros]) for name in micros[0]}
        names = dict.fromkeys(name for metrics in self.metrics for name in metrics)
        return joined | {
            name: torch.tensor([m[name] for m in self.metrics], dtype=torch.float64)
            for name in names
        }


@torch.no_grad()
def norm_of_gradients(model: nn.Module) -> float:
    """Compute the L2 norm of all gradients in float64: a second opinion on what clipping reports.

    All ranks must call it.
    """
    whole = (sharding.whole(p.grad) for p in model.parameters() if p.grad is not None)
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in whole))
