"""Other gradients from the same loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor, nn

from align.core.rung import Rung
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.stack.config import StackConfig
    from align.stack.pipeline import Model, Pipeline, Tokenizer


def _in_the_actor(pipeline: Pipeline, edit: Callable[[Model], None]) -> Pipeline:
    def build_model(config: StackConfig, tokenizer: Tokenizer) -> Model:
        model = pipeline.build_model(config, tokenizer)
        edit(model)
        return model

    return replace(pipeline, build_model=build_model)


def unscaled_accumulation(pipeline: Pipeline) -> Pipeline:
    """Add micro-batches up as if each were the whole mini-batch."""
    num_micro_batches = 2  # of the setting

    def backward(loss: Tensor, model: nn.Module) -> None:
        pipeline.backward(loss * num_micro_batches, model)

    return replace(pipeline, backward=backward)


def detached_layer(pipeline: Pipeline) -> Pipeline:
    """Cut the gradient at the output of the second layer's MLP."""

    def edit(model: Model) -> None:
        model.model.layers[1].mlp.register_forward_hook(lambda module, x, output: output.detach())

    return _in_the_actor(pipeline, edit)


def unreduced_norm_gradients(pipeline: Pipeline) -> Pipeline:
    """Give norms the gradient of half the tokens, as one of two sequence-parallel ranks has it."""

    def half(norm: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        middle = output.shape[1] // 2
        with mock.patch.object(norm, "_parameters", {"weight": norm.weight.detach()}):
            rest = norm.forward(inputs[0][:, middle:])
        return torch.cat([output[:, :middle], rest], dim=1)

    def edit(model: Model) -> None:
        for norm in _layer_norms(model):
            norm.register_forward_hook(half)

    return _in_the_actor(pipeline, edit)


def _layer_norms(model: Model) -> Iterator[nn.Module]:
    for layer in model.model.layers:
        yield layer.input_layernorm
        yield layer.post_attention_layernorm


def doubled_norm(pipeline: Pipeline) -> Pipeline:
    """Count every gradient on two ranks: the norm doubles, and clipping takes it at its word."""
    factor = 2.0

    def clip_gradients(model: nn.Module, max_norm: float) -> float:
        return factor * pipeline.clip_gradients(model, max_norm / factor)

    return replace(pipeline, clip_gradients=clip_gradients)


def _backward(
    name: str,
    what: str,
    field_report: str,
    finding_id: str,
    change: Callable[[Pipeline], Pipeline],
    module: str | None = None,
) -> Fault:
    return Fault(
        name,
        Rung.BACKWARD,
        what,
        field_report,
        f"backward.{finding_id}",
        ("gradients",),
        change=change,
        module=module,
    )


FAULTS = (
    _backward(
        "accumulation_not_scaled",
        "Gradients of micro-batches are added up without dividing by their number.",
        "report 32, report 41",
        "scale",
        unscaled_accumulation,
    ),
    _backward(
        "detached_layer",
        "No gradient passes the MLP of the second layer.",
        "msprobe's planted bugs",
        "first_divergence",
        detached_layer,
        "layers.1.mlp",
    ),
    _backward(
        "norm_gradient_not_reduced",
        "Replicated norms keep one rank's part of their gradient under sequence parallel.",
        "report 39",
        "first_divergence",
        unreduced_norm_gradients,
        "layernorm",
    ),
    _backward(
        "gradient_norm_doubled",
        "Every gradient is counted on two ranks in the norm, so clipping halves the update.",
        "report 41, report 43",
        "grad_norm",
        doubled_norm,
    ),
)
