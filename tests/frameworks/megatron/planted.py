"""Faults of the kind that get into a training, put into the real Megatron-core's modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core import parallel_state


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
    )
}


def plant(name: str, number: int, models: Sequence[Any]) -> None:
    """Put a fault into a layer of the whole model, where this rank has it.

    Args:
        name: of a function here, or "partial_embedding_gradient": the first and the last stage do
            not add up the gradients of the embedding they share; or of a fault of no module.
        number: of the layer, from 0.
    """
    if name == "partial_embedding_gradient":
        for model in models:
            model.share_embeddings_and_output_weights = False
        return
    for model in models:
        for layer in model.decoder.layers:
            if layer.layer_number == number + 1 and name in OF_LAYER:
                OF_LAYER[name](layer)
