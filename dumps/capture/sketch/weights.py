"""Sketch what belongs to parameters: values, gradients, updates and optimizer states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from align.layout.rank_weights import Cut
from dumps.capture.megatron_optimizer import moments, owned_ranges, stepped
from dumps.capture.sketch.held import Block, Held, held
from dumps.capture.sketch.local import Local
from dumps.capture.sketch.recorder import Recorder
from dumps.store.tensor_records import Phase

Ranges = Mapping[int, tuple[int, int]]
"""By the id of a parameter: the part of its gradient that is reduced on this process alone."""

_NOTHING = (0, 0)


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
    scale: Tensor | None = None,
) -> None:
    """Sketch the gradient of every parameter that has one, once it is reduced over ranks.

    Args:
        local: what the parameters are, where they are not the whole model's own.
        owned: where gradients are reduced in parts (Megatron's distributed optimizer); a
            parameter of which this process has no part is in no range.
        scale: of the loss, which gradients are divided by; None for 1.
    """
    for own in held(model):
        gradient = own.gradient()
        if gradient is not None:
            plain = gradient if scale is None else gradient / scale.to(gradient.device)
            _record(recorder, own, Phase.PARAMETER_GRADIENT, plain, local, _own(owned, own))


def parameters_of(model: nn.Module, optimizer: Any = None) -> dict[str, Tensor]:
    """Copy what this rank holds of the parameters, to be told what an optimizer step adds.

    Args:
        optimizer: with the tensors it steps instead of the parameters, if it does.
    """
    owned = owned_ranges(optimizer)
    return {
        own.name: _stepped(own, optimizer).clone()
        for own in held(model)
        if _own(owned, own) != _NOTHING
    }


def record_update(
    recorder: Recorder,
    model: nn.Module,
    before: Mapping[str, Tensor],
    *,
    local: Local | None = None,
    optimizer: Any = None,
) -> None:
    """Sketch what was added to every parameter.

    Args:
        before: from `parameters_of`.
        local: what the parameters are, where they are not the whole model's own.
        optimizer: the one `parameters_of` was given.
    """
    owned = owned_ranges(optimizer)
    for own in held(model):
        if own.name in before:
            added = _stepped(own, optimizer) - before[own.name]
            _record(recorder, own, Phase.UPDATE, added, local, _own(owned, own))


def record_moments(
    recorder: Recorder,
    model: nn.Module,
    optimizer: Any,
    *,
    local: Local | None = None,
) -> None:
    """Sketch Adam's moments, and count which of their elements bfloat16 holds exactly.

    Args:
        optimizer: torch's or Megatron's.
    """
    owned = owned_ranges(optimizer)
    for own in held(model):
        for moment, state in moments(optimizer, own.key).items():
            part, tensor = _own(owned, own), own.of(state)
            _record(recorder, own, moment, tensor, local, part, counts_bfloat16=True)


def _own(owned: Ranges | None, own: Held) -> tuple[int, int] | None:
    return None if owned is None else owned.get(id(own.key), _NOTHING)


def _stepped(own: Held, optimizer: Any) -> Tensor:
    found = None if optimizer is None else stepped(optimizer, own.key)
    return own.value() if found is None else own.of(found)


def _record(
    recorder: Recorder,
    own: Held,
    phase: str,
    tensor: Tensor,
    local: Local | None,
    owned: tuple[int, int] | None = None,
    *,
    counts_bfloat16: bool = False,
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
