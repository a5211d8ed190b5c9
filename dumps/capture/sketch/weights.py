"""Sketch what belongs to parameters: values, gradients, updates and optimizer states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from align.layout.rank_weights import Cut
from dumps.capture.sketch.held import Block, Held, held
from dumps.capture.sketch.local import Local
from dumps.capture.sketch.recorder import Recorder
from dumps.store.tensor_records import Phase

Ranges = Mapping[int, tuple[int, int]]
"""By the id of a parameter: the part of its gradient that is reduced on this process alone."""


def record_parameters(
    recorder: Recorder,
    model: nn.Module,
    phase: str,
    dtype: torch.dtype | None = None,
    *,
    local: Local | None = None,
) -> None:
    """Sketch every parameter.

    Args:
        dtype: to which it is rounded first.
        local: what the parameters are, where they are not the whole model's own.
    """
    for own in held(model):
        value = own.value()
        _record(recorder, own, phase, value if dtype is None else value.to(dtype), local)


def record_gradients(
    recorder: Recorder,
    model: nn.Module,
    *,
    local: Local | None = None,
    owned: Ranges | None = None,
) -> None:
    """Sketch the gradient of every parameter that has one, once it is reduced over ranks.

    Args:
        local: what the parameters are, where they are not the whole model's own.
        owned: where gradients are reduced in parts (Megatron's distributed optimizer); a
            parameter of which this process has no part is in no range.
    """
    for own in held(model):
        gradient = own.gradient()
        if gradient is not None:
            part = None if owned is None else owned.get(id(own.key), (0, 0))
            _record(recorder, own, Phase.PARAMETER_GRADIENT, gradient, local, owned=part)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy the parameters this rank holds, to be told what an optimizer step adds to them."""
    return {own.name: own.value().clone() for own in held(model)}


def record_update(
    recorder: Recorder,
    model: nn.Module,
    before: Mapping[str, Tensor],
    *,
    local: Local | None = None,
) -> None:
    """Sketch what was added to every parameter.

    Args:
        before: from `parameters_of`.
        local: what the parameters are, where they are not the whole model's own.
    """
    for own in held(model):
        _record(recorder, own, Phase.UPDATE, own.value() - before[own.name], local)


def record_moments(
    recorder: Recorder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    local: Local | None = None,
) -> None:
    """Sketch Adam's moments, and count which of their elements bfloat16 holds exactly."""
    for own in held(model):
        state: Mapping[str, Tensor] = optimizer.state.get(own.key, {})
        for moment in (Phase.FIRST_MOMENT, Phase.SECOND_MOMENT):
            if moment in state:
                tensor = own.of(state[moment])
                _record(recorder, own, moment, tensor, local, counts_bfloat16=True)


def _record(
    recorder: Recorder,
    own: Held,
    phase: str,
    tensor: Tensor,
    local: Local | None,
    *,
    counts_bfloat16: bool = False,
    owned: tuple[int, int] | None = None,
) -> None:
    """Sketch this rank's part of a tensor; what several ranks hold alike is the first one's."""
    if owned is None and _is_copy(own, local):
        return
    blocks = own.blocks(tensor, owned)
    if blocks is None:
        recorder.problems.add(f"{own.name} is sharded in a way that is not sketched")
        return
    for block in blocks:
        cuts = _cuts(own.name, block, local)
        if cuts is None:
            recorder.problems.add(f"no rule says what the parameter {own.name} is")
            return
        for name, part, row, column in cuts:
            recorder.add_weight(
                name, phase, part, row, first_column=column, counts_bfloat16=counts_bfloat16
            )


def _is_copy(own: Held, local: Local | None) -> bool:
    if local is not None:
        weight = None if local.weights is None else local.weights.get(own.name)
        is_expert = weight is not None and weight.is_expert
        return (local.expert_replica if is_expert else local.replica) > 0
    if own.start is not None or hasattr(own.key, "placements"):
        return own.is_copy
    return bool(dist.is_initialized() and dist.get_rank())


def _cuts(name: str, block: Block, local: Local | None) -> list[Cut] | None:
    tensor, row, column = block
    if local is None or local.weights is None:
        return [(name, tensor, row, column)]
    weight = local.weights.get(name)
    return None if weight is None else list(weight.cuts(tensor, row, column))
