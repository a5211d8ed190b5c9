"""Faults of the kind that get into a training, put into the real Megatron-core's modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor


def epsilon(layer: Any) -> None:
    """Give the norm before the feed-forward block another epsilon."""
    layer.pre_mlp_layernorm.eps = 1e-4


def attention_scale(layer: Any) -> None:
    """Scale attention's scores by 1 % more."""
    layer.self_attention.core_attention.softmax_scale *= 1.01


def partial_output(layer: Any) -> None:
    """Leave out the all-reduce that ends the feed-forward block."""
    layer.mlp.linear_fc2.explicit_expert_comm = True


def partial_input_gradient(layer: Any) -> None:
    """Leave out the all-reduce of the gradient of the feed-forward block's input."""
    layer.mlp.linear_fc1.explicit_expert_comm = True


def partial_norm_gradient(layer: Any) -> None:
    """Leave out the all-reduce of a norm's gradient, whose ranks have other tokens each."""
    layer.input_layernorm.weight.sequence_parallel = False


def swapped_halves(layer: Any) -> None:
    """Load gate and up the wrong way around on every rank but the first."""
    if parallel_state.get_tensor_model_parallel_rank():
        weight = layer.mlp.linear_fc1.weight
        weight.data = torch.cat(weight.data.chunk(2)[::-1])


def other_weight(layer: Any) -> None:
    """Load other numbers on one rank."""
    if parallel_state.get_tensor_model_parallel_rank():
        layer.self_attention.linear_proj.weight.data.mul_(1.001)


def router_bias(layer: Any) -> None:
    """Add to the scores of experts."""
    scores = layer.mlp.router.gating

    def gating(*args: Any, **kwargs: Any) -> Any:
        found = scores(*args, **kwargs)
        return found + torch.linspace(0, 0.01, found.shape[-1])

    layer.mlp.router.gating = gating


def reduced_key_positions(layer: Any) -> None:
    """Mend Megatron's own fault: sum the gradient of the keys' positional features over ranks.

    All ranks' heads use these features of `linear_kv_down_proj`, which the local spec gathers by a
    function whose backward only splits: Megatron-core 0.16.1, `multi_latent_attention.py:607`.
    """
    attention = layer.self_attention
    projected, width = attention.get_query_key_value_tensors, attention.config.qk_head_dim

    def get_query_key_value_tensors(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        query, key, *others = projected(*args, **kwargs)
        contents, positions = key[..., :width], key[..., width:]
        positions.register_hook(_summed)
        return query, torch.cat((contents, positions), -1), *others

    attention.get_query_key_value_tensors = get_query_key_value_tensors


def _summed(gradient: Tensor) -> Tensor:
    # not by Megatron's `_reduce`, which loses the sum of what is not contiguous
    total = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
    return total


OF_LAYER: dict[str, Callable[[Any], None]] = {
    fault.__name__: fault
    for fault in (
        epsilon,
        attention_scale,
        partial_output,
        partial_input_gradient,
        partial_norm_gradient,
        swapped_halves,
        other_weight,
        router_bias,
        reduced_key_positions,
    )
}


def plant(name: str, number: int | None, models: Sequence[Any]) -> None:
    """Put a fault into a layer of the whole model, where this rank has it.

    Args:
        name: of a function here, or "partial_embedding_gradient": the first and the last stage do
            not add up the gradients of the embedding they share; or of a fault of no module.
        number: of the layer, from 0; None is every layer.
    """
    if name == "partial_embedding_gradient":
        for model in models:
            model.share_embeddings_and_output_weights = False
        return
    for model in models:
        for layer in model.decoder.layers:
            if name in OF_LAYER and number in (None, layer.layer_number - 1):
                OF_LAYER[name](layer)
