"""Sketch what belongs to parameters: values, gradients, updates and optimizer states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dumps.capture.gradients import local, plain_name
from dumps.capture.sketch.recorder import Recorder
from dumps.store.tensor_records import Phase


def record_parameters(recorder: Recorder, model: nn.Module, phase: str) -> None:
    """Sketch every parameter."""
    for name, parameter in model.named_parameters():
        _record(recorder, name, phase, parameter)


def record_gradients(recorder: Recorder, model: nn.Module) -> None:
    """Sketch the gradient of every parameter that has one."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            _record(recorder, name, Phase.PARAMETER_GRADIENT, parameter.grad)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy the parameters this rank holds, to be told what an optimizer step adds to them."""
    return {name: local(p).detach().clone() for name, p in model.named_parameters()}


def record_update(recorder: Recorder, model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Sketch what was added to every parameter.

    Args:
        before: from `parameters_of`.
    """
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            added = local(parameter) - before[name]
        _record(recorder, name, Phase.UPDATE, added, like=parameter)


def record_moments(recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Sketch Adam's moments, and count which of their elements bfloat16 holds exactly."""
    for name, parameter in model.named_parameters():
        state: Mapping[str, Tensor] = optimizer.state.get(parameter, {})
        for moment in (Phase.FIRST_MOMENT, Phase.SECOND_MOMENT):
            if moment in state:
                _record(recorder, name, moment, state[moment], counts_bfloat16=True)


def _record(
    recorder: Recorder,
    name: str,
    phase: str,
    tensor: Tensor,
    *,
    like: Tensor | None = None,
    counts_bfloat16: bool = False,
) -> None:
    """Sketch this rank's part of a tensor; what every rank holds alike is the first rank's."""
    first_row = _first_row(tensor if like is None else like)
    if first_row is None:
        recorder.problems.add(f"{name} is sharded in a way that is not sketched")
    elif first_row >= 0:
        own = local(tensor).detach()
        recorder.add_weight(
            plain_name(name), phase, own, first_row, counts_bfloat16=counts_bfloat16
        )


def _first_row(tensor: Tensor) -> int | None:
    """Return the first row this rank holds, -1 where another rank records it, None if unknown."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return -1 if dist.is_initialized() and dist.get_rank() else 0
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    (placement,) = placements if len(placements) == 1 else (None,)
    if placement is None or not placement.is_shard(0):
        return None
    num_rows = int(tensor.shape[0])
    return min(num_rows, int(mesh.get_local_rank()) * -(-num_rows // int(mesh.size())))
