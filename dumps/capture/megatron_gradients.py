"""Squared sums of gradients in a Megatron-style model, so that they add up over all ranks.

Whatever several ranks hold alike is counted by one of them, by the rules of Megatron's own norm
(`MegatronOptimizer.get_main_grads_for_grad_norm`): a parameter that tensor parallelism repeats
by tensor rank 0, a tied embedding's second copy by none. Beyond those: a gradient that data
parallelism repeats by data rank 0, and under the distributed optimizer each rank its own shard,
the one part of its buffer that is reduced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dumps.capture.device import widest
from dumps.capture.gradients import gradient_squares, plain_name, squares
from dumps.capture.megatron_optimizer import loss_scale, owned_ranges


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Where this rank stands in the groups that repeat gradients."""

    tensor: int = 0
    data: int = 0
    expert_data: int = 0

    def counts(self, parameter: nn.Parameter) -> bool:
        """Tell whether this rank counts a parameter, as far as tensor parallelism goes."""
        is_sharded = bool(getattr(parameter, "tensor_model_parallel", False))
        return not getattr(parameter, "shared", False) and (is_sharded or self.tensor == 0)

    def of_data(self, parameter: nn.Parameter) -> int:
        """Return this rank's number among those that hold the same gradient of a parameter."""
        return self.data if getattr(parameter, "allreduce", True) else self.expert_data


def rank_gradient_squares(model: Any, optimizer: Any) -> tuple[list[str], Tensor]:
    """Return names and squared sums of the gradients this rank counts.

    Args:
        model: a module, whole or of FSDP's shards, or the list of a Megatron rank's chunks.
    """
    if isinstance(model, list | tuple):
        return megatron_gradient_squares(model, optimizer)
    return gradient_squares(model.named_parameters())


def megatron_gradient_squares(
    chunks: Sequence[nn.Module], optimizer: Any
) -> tuple[list[str], Tensor]:
    """Return names and squared sums of what this rank counts, one number a parameter.

    Args:
        chunks: the model parts of this rank, one a virtual pipeline stage.
        optimizer: Megatron's; it knows the shards of a distributed optimizer and the loss scale.

    Returns:
        names with the layer's number in the whole model, and float64 [names] on the gradients'
        device (float32 on an NPU). Sums over all ranks give the squared norm before clipping.
    """
    names, sums = squares(_counted(chunks, optimizer))
    scale = loss_scale(optimizer)
    if scale is not None and names:
        sums = sums / torch.as_tensor(scale, device=sums.device).to(widest(sums)).square()
    return names, sums.reshape(-1)


def _counted(chunks: Sequence[nn.Module], optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    ranks, shards = _ranks(), owned_ranges(optimizer)
    for chunk in chunks:
        layers = _layers(chunk)
        for name, parameter in chunk.named_parameters():
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is None or not ranks.counts(parameter):
                continue
            if shards is None:
                if ranks.of_data(parameter) == 0:
                    yield _name(name, layers), gradient
            elif id(parameter) in shards:
                start, end = shards[id(parameter)]
                yield _name(name, layers), gradient.view(-1)[start:end]


def _ranks() -> _Ranks:
    """Ask Megatron, which MindSpeed-RL and verl both build their groups with."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return _Ranks()
    expert = getattr(
        state,
        "get_expert_data_parallel_rank",  # 0.9 and later
        getattr(state, "get_data_modulo_expert_parallel_rank", lambda: 0),
    )
    data = state.get_data_parallel_rank(with_context_parallel=True)
    return _Ranks(state.get_tensor_model_parallel_rank(), data, expert())


def _layers(chunk: nn.Module) -> dict[str, str]:
    """Return the prefix of each layer in the whole model, by its prefix in this part of it.

    Megatron numbers layers from 1 over all stages, and names them from 0 in each.
    """
    return {
        f"{name}.": f"{name.rpartition('.')[0]}.{module.layer_number - 1}."
        for name, module in chunk.named_modules()
        if name.rpartition(".")[2].isdigit() and isinstance(_number(module), int)
    }


def _number(module: nn.Module) -> Any:
    return getattr(module, "layer_number", None)


def _name(name: str, layers: dict[str, str]) -> str:
    for local, whole in layers.items():
        if name.startswith(local):
            name = whole + name.removeprefix(local)
            break
    while name.startswith("module."):  # data parallelism and mixed precision wrap one another
        name = name.removeprefix("module.")
    return plain_name(name)
