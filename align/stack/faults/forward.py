"""Another forward pass in the trainer; the rollout engine computes what the checkpoint means."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor, nn

from align.core.rung import Rung
from align.stack import log_probs as log_probs_module
from align.stack.faults.fault import Fault
from align.stack.log_probs import rows_apart

if TYPE_CHECKING:
    from align.stack.batch import TrainBatch
    from align.stack.config import StackConfig
    from align.stack.pipeline import Model, Pipeline, Tokenizer


def in_the_trainer(pipeline: Pipeline, edit: Callable[[Model], None]) -> Pipeline:
    """Edit the models of the training framework: the actor and the reference model."""

    def edited(
        build: Callable[[StackConfig, Tokenizer], Model],
    ) -> Callable[[StackConfig, Tokenizer], Model]:
        def build_and_edit(config: StackConfig, tokenizer: Tokenizer) -> Model:
            model = build(config, tokenizer)
            edit(model)
            return model

        return build_and_edit

    return replace(
        pipeline,
        build_model=edited(pipeline.build_model),
        build_reference_model=edited(pipeline.build_reference_model),
    )


def rope_interleaved(pipeline: Pipeline) -> Pipeline:
    """Rotate neighbouring features, where the model rotates the two halves of a head."""

    def edit(model: Model) -> None:
        modeling = sys.modules[type(model).__module__]
        swapped_in_attention(model, modeling, "apply_rotary_pos_emb", interleaved_rope)

    return in_the_trainer(pipeline, edit)


def swapped_in_attention(model: Model, owner: Any, name: str, other: Callable[..., Any]) -> None:
    """Have one function replaced while an attention layer of this model computes."""
    for layer in model.model.layers:
        layer.self_attn.forward = _swapped(layer.self_attn.forward, owner, name, other)


def _swapped(
    forward: Callable[..., Any], owner: Any, name: str, other: Callable[..., Any]
) -> Callable[..., Any]:
    def forward_with_other(*args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(owner, name, other):
            return forward(*args, **kwargs)

    return forward_with_other


def interleaved_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    """Rotate features 2i and 2i+1 by angle i; q, k [b, heads, s, d], cos, sin [b, s, d]."""
    half = cos.shape[-1] // 2
    cos, sin = (x[..., :half].repeat_interleave(2, -1).unsqueeze(1) for x in (cos, sin))

    def rotate(x: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        turned = torch.stack((-odd, even), dim=-1).flatten(-2)
        return x * cos + turned * sin

    return rotate(q), rotate(k)


def qkv_bias_dropped(pipeline: Pipeline) -> Pipeline:
    """Leave out the bias of the q, k and v projections."""

    def without_bias(module: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return nn.functional.linear(inputs[0], module.weight)

    def edit(model: Model) -> None:
        for layer in model.model.layers:
            for name in ("q_proj", "k_proj", "v_proj"):
                getattr(layer.self_attn, name).register_forward_hook(without_bias)

    return in_the_trainer(pipeline, edit)


def attention_scale(pipeline: Pipeline) -> Pipeline:
    """Scale attention scores by 1 % too much."""

    def edit(model: Model) -> None:
        for layer in model.model.layers:
            layer.self_attn.scaling *= 1.01

    return in_the_trainer(pipeline, edit)


def softmax_bfloat16(pipeline: Pipeline) -> Pipeline:
    """Compute the attention softmax in bfloat16 inside a float32 model."""

    def edit(model: Model) -> None:
        swapped_in_attention(model, torch, "softmax", partial(_rounded, torch.softmax))

    return in_the_trainer(pipeline, edit)


def _rounded(softmax: Callable[..., Tensor], scores: Tensor, dim: int, **_: Any) -> Tensor:
    return softmax(scores.bfloat16(), dim=dim).to(scores.dtype)


def one_norm_eps(pipeline: Pipeline) -> Pipeline:
    """Build one norm with its class's default epsilon instead of the model's."""

    def edit(model: Model) -> None:
        model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-5

    return in_the_trainer(pipeline, edit)


def router_bfloat16(pipeline: Pipeline) -> Pipeline:
    """Compute the logits of every router in bfloat16."""

    def low_precision(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0].bfloat16().to(inputs[0].dtype), *inputs[1:])

    def edit(model: Model) -> None:
        for layer in model.model.layers:
            layer.mlp.gate.register_forward_pre_hook(low_precision)

    return in_the_trainer(pipeline, edit)


def packed_attends_across(pipeline: Pipeline) -> Pipeline:
    """Pack rows without telling attention where one ends and the next begins."""

    def together(model: Model, attention_mask: Tensor) -> dict[str, Any]:
        return rows_apart(model, attention_mask.flatten()[None])

    def log_probs(model: Model, batch: TrainBatch, config: StackConfig) -> tuple[Tensor, Tensor]:
        with mock.patch.object(log_probs_module, "rows_apart", together):
            return pipeline.log_probs(model, batch, config)

    return replace(pipeline, log_probs=log_probs)


def without_temperature(pipeline: Pipeline) -> Pipeline:
    """Score the responses at temperature 1, whatever they were sampled at."""

    def log_probs(model: Model, batch: TrainBatch, config: StackConfig) -> tuple[Tensor, Tensor]:
        group = config.actor_rollout_ref
        group = replace(group, rollout=replace(group.rollout, temperature=1.0))
        return pipeline.log_probs(model, batch, replace(config, actor_rollout_ref=group))

    return replace(pipeline, log_probs=log_probs)


def _forward(
    name: str,
    what: str,
    field_report: str,
    change: Callable[[Pipeline], Pipeline],
    module: str,
    setting: tuple[str, ...] = (),
) -> Fault:
    return Fault(
        name,
        Rung.FORWARD,
        what,
        field_report,
        "forward.first_divergence",
        ("captures", "trainer_inputs"),
        change=change,
        module=module,
        setting=setting,
    )


FAULTS = (
    _forward(
        "rope_interleaved",
        "The rotary embedding turns neighbouring features, not the halves of a head.",
        "report 45",
        rope_interleaved,
        "layers.0.self_attn",
    ),
    _forward(
        "qkv_bias_dropped",
        "The bias of the q, k and v projections is not loaded.",
        "report 45, msprobe's planted bugs",
        qkv_bias_dropped,
        "layers.0.self_attn",
    ),
    _forward(
        "attention_scale",
        "Attention scores are scaled by 1 % too much.",
        "msprobe's planted bugs",
        attention_scale,
        "layers.0.self_attn",
    ),
    _forward(
        "softmax_bfloat16",
        "The attention softmax is computed in bfloat16.",
        "report 3",
        softmax_bfloat16,
        "layers.0.self_attn",
    ),
    _forward(
        "packed_attends_across",
        "Packed sequences attend to those before them.",
        "report 38, report 44",
        packed_attends_across,
        "layers.0.self_attn",
    ),
    _forward(
        "one_norm_eps",
        "One norm is built with epsilon 1e-5 where the model says 1e-6.",
        "report 35",
        one_norm_eps,
        "layers.1.post_attention_layernorm",
    ),
    _forward(
        "router_bfloat16",
        "The router of every mixture-of-experts layer works in bfloat16.",
        "report 4, report 5",
        router_bfloat16,
        "layers.0.mlp",
        setting=("actor_rollout_ref.model.path=tiny-qwen3-moe",),
    ),
    Fault(
        "temperature_missing",
        Rung.FORWARD,
        "The trainer's log_probs are not divided by the sampling temperature.",
        "report 11, report 12",
        "forward.temperature",
        ("rollouts", "trainer_inputs"),
        change=without_temperature,
        setting=("actor_rollout_ref.rollout.temperature=0.6",),
    ),
)
