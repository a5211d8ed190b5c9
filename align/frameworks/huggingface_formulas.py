"""Fields of a model that several keys of config.json, or its ``model_type``, determine."""

from __future__ import annotations

from collections.abc import Callable

from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import NOT_SET, Formula, NotSet, number

_QWEN2 = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl")
_QWEN3 = ("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_next")
_LLAMA = ("llama", "mistral", "mixtral")
_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "deepseek_v32")
_KNOWN = (*_LLAMA, *_QWEN2, *_QWEN3, *_DEEPSEEK)
_SIGMOID = ("deepseek_v3", "deepseek_v32", "glm4_moe")
_SOFTMAX = ("qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "mixtral", "deepseek_v2")
_NO_QKV_BIAS = ("mistral", "mixtral", "deepseek_v2", "deepseek_v3", "deepseek_v32")


def _family(kind: ConfigLeaf) -> str:
    """Return ``qwen3_vl`` of ``qwen3_vl_text``."""
    return str(kind).removesuffix("_text")


def _in_family(families: tuple[str, ...], value: ConfigLeaf) -> Callable[..., object]:
    return lambda kind: value if _family(kind) in families else NOT_SET


def _qk_norm(kind: ConfigLeaf) -> bool | NotSet:
    return _family(kind) in _QWEN3 if _family(kind) in _KNOWN else NOT_SET


def _head_dim(width: ConfigLeaf, heads: ConfigLeaf) -> int | NotSet:
    a, b = number(width), number(heads)
    return NOT_SET if a is None or not b else int(a // b)


def _scaling(kind: ConfigLeaf) -> ConfigLeaf:
    return None if kind == "default" else kind


def _router(kind: ConfigLeaf) -> str | NotSet:
    if _family(kind) in _SIGMOID:
        return "sigmoid"
    return "softmax" if _family(kind) in _SOFTMAX else NOT_SET


def _auxiliary(on: ConfigLeaf, coefficient: ConfigLeaf) -> ConfigLeaf:
    return coefficient if on is True else 0.0


def _window(on: ConfigLeaf, width: ConfigLeaf) -> ConfigLeaf:
    return width if on is True else None


def _layers_of_window(on: ConfigLeaf, first: ConfigLeaf) -> ConfigLeaf | NotSet:
    return first if on is True else NOT_SET


def _layer_types(types: ConfigLeaf) -> ConfigLeaf:
    """Return one word where all layers are of one type."""
    kinds = dict.fromkeys(types) if isinstance(types, tuple) else {}
    return next(iter(kinds)) if len(kinds) == 1 else types


def _all_full(on: ConfigLeaf) -> str | NotSet:
    return NOT_SET if on is True else "full_attention"


_ROPE = (
    ("rope_parameters.rope_type", _scaling),
    ("rope_scaling.rope_type", _scaling),
    ("rope_scaling.type", _scaling),
    ("rope_scaling", lambda none: NOT_SET if none else None),
)

CONFIG_FORMULAS: tuple[Formula, ...] = (
    Formula(
        "model.qkv_bias",
        ("model_type",),
        _in_family(_QWEN2, True),
        "Qwen2 always has a bias on q, k and v",
    ),
    Formula("model.qkv_bias", ("attention_bias",), lambda bias: bias, "attention_bias"),
    Formula(
        "model.qkv_bias",
        ("model_type",),
        _in_family(_NO_QKV_BIAS, False),
        "this family has no bias on q, k and v",
    ),
    Formula("model.linear_bias", ("mlp_bias",), lambda bias: bias, "mlp_bias"),
    Formula(
        "model.linear_bias",
        ("model_type",),
        _in_family(_KNOWN, False),
        "this family has no other biases",
    ),
    Formula(
        "model.qk_norm",
        ("model_type",),
        _qk_norm,
        "Qwen3 normalises q and k, Qwen2, Llama and DeepSeek do not",
    ),
    Formula(
        "model.normalization",
        ("rms_norm_eps",),
        lambda eps: "rmsnorm",
        "a model with rms_norm_eps uses RMSNorm",
    ),
    Formula(
        "model.position_embedding",
        ("model_type",),
        _in_family(_KNOWN, "rope"),
        "this family uses rotary embeddings",
    ),
    Formula(
        "model.hidden_dropout",
        ("model_type",),
        _in_family(_KNOWN, 0.0),
        "this family has no dropout on hidden states",
    ),
    Formula(
        "model.head_dim",
        ("head_dim",),
        lambda width: NOT_SET if width is None else width,
        "head_dim",
    ),
    Formula(
        "model.head_dim",
        ("hidden_size", "num_attention_heads"),
        _head_dim,
        "hidden_size / num_attention_heads",
    ),
    *(Formula("model.rope_scaling_type", (key,), convert, key) for key, convert in _ROPE),
    Formula(
        "model.router_score",
        ("scoring_func",),
        lambda name: NOT_SET if name is None else name,
        "scoring_func",
    ),
    Formula("model.router_score", ("model_type",), _router, "this family has one router"),
    Formula(
        "model.moe_aux_loss_coef",
        ("output_router_logits", "router_aux_loss_coef"),
        _auxiliary,
        "router_aux_loss_coef where output_router_logits is on",
    ),
    Formula(
        "model.override.sliding_window",
        ("use_sliding_window", "sliding_window"),
        _window,
        "sliding_window where use_sliding_window is on",
    ),
    Formula(
        "model.override.sliding_window", ("sliding_window",), lambda width: width, "sliding_window"
    ),
    Formula(
        "model.override.max_window_layers",
        ("use_sliding_window", "max_window_layers"),
        _layers_of_window,
        "max_window_layers where use_sliding_window is on",
    ),
    Formula("model.override.layer_types", ("layer_types",), _layer_types, "layer_types"),
    Formula(
        "model.override.layer_types",
        ("use_sliding_window",),
        _all_full,
        "without a sliding window every layer attends to all",
    ),
)
