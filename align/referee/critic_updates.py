"""What the critic's updates of a captured run computed with, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from align.referee.captured_parts import captured_parts
from dumps.readers.captured_step import CapturedStep
from dumps.store.run_data import RunData

_TENSORS = ("vpreds", "values", "returns", "response_mask")


@dataclass(frozen=True, slots=True, eq=False)
class CriticUpdate:
    """One optimizer step of the critic; n counting tokens of all ranks and micro-batches.

    Args:
        step: training step, from 1.
        number: of the update within its step, from 0.
        source: one of the files it was read from.
        predictions: float64 [n], of the critic in this update.
        values: float64 [n], of the critic before the step's first update.
        returns: float64 [n], the targets.
        loss: as computed, summed over micro-batches and averaged over ranks.
        norm: of the gradient, before clipping; None where it is not recorded.
    """

    step: int
    number: int
    source: str
    predictions: Tensor
    values: Tensor
    returns: Tensor
    loss: float
    norm: float | None


def critic_updates(run: RunData) -> Iterator[CriticUpdate]:
    """Yield the updates in order."""
    for step, ranks in captured_parts(run, "critic"):
        for number in range(max(rank.num_updates for rank in ranks)):
            found = _update(step, number, ranks)
            if found is not None:
                yield found


def _update(step: int, number: int, ranks: Sequence[CapturedStep]) -> CriticUpdate | None:
    columns: dict[str, list[Tensor]] = {name: [] for name in _TENSORS[:3]}
    losses, norm = [], None
    for rank in ranks:
        micro, own = 0, 0.0
        while (key := f"update.{number}.micro.{micro}.") + "value_loss" in rank.tensors:
            if any(key + name not in rank.tensors for name in _TENSORS):
                return None
            mask = torch.from_numpy(rank.tensors[key + "response_mask"]).bool()
            for name, column in columns.items():
                column.append(torch.from_numpy(rank.tensors[key + name]).double()[mask])
            own += float(rank.tensors[key + "value_loss"])
            micro += 1
        losses.append(own)
        if f"update.{number}.grad_norm" in rank.tensors:
            norm = float(rank.tensors[f"update.{number}.grad_norm"])
    if not columns["vpreds"]:
        return None
    return CriticUpdate(
        step,
        number,
        str(ranks[0].path),
        predictions=torch.cat(columns["vpreds"]),
        values=torch.cat(columns["values"]),
        returns=torch.cat(columns["returns"]),
        loss=sum(losses) / len(losses),
        norm=norm,
    )
