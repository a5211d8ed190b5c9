"""Faults of layers of transformers' models: what is planted into verl's and TRL's alike.

Each function takes a model's layers. Runs of verl find this file beside their plugins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def one_norm_eps(layers: Any) -> None:
    """One norm adds 1e-5."""
    layers[1].post_attention_layernorm.variance_epsilon = 1e-5


def attention_scale(layers: Any) -> None:
    """Attention of one layer is scaled by 1 % more."""
    layers[1].self_attn.scaling *= 1.01


def gelu(layers: Any) -> None:
    """One MLP has another activation function."""
    layers[0].mlp.act_fn = nn.GELU(approximate="tanh")


def rounded_mlp(layers: Any) -> None:
    """One MLP puts out bfloat16 numbers."""
    layers[1].mlp.register_forward_hook(lambda m, a, out: out.bfloat16().to(out.dtype))


def detached_layer(layers: Any) -> None:
    """No gradient passes one MLP on its way down."""
    own = layers[1].mlp.forward
    layers[1].mlp.forward = lambda x: own(x.detach())


LAYER_FAULTS: dict[str, Callable[[Any], None]] = {
    fault.__name__: fault
    for fault in (one_norm_eps, attention_scale, gelu, rounded_mlp, detached_layer)
}
