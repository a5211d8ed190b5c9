"""A model's config.json, as transformers 4 and 5 write it."""

from __future__ import annotations

from collections.abc import Callable

from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import NOT_SET, Formula, NotSet, number

READS_MODEL_CONFIG = True

CONFIG_SIGNS = ("architectures", "model_type", "transformers_version")

CONFIG_KEYS: dict[str, str] = {
    "num_hidden_layers": "model.num_layers",
    "hidden_size": "model.hidden_size",
    "intermediate_size": "model.intermediate_size",
    "num_attention_heads": "model.num_attention_heads",
    "num_key_value_heads": "model.num_key_value_heads",
    "head_dim": "model.head_dim",
    "rms_norm_eps": "model.rms_norm_eps",
    "rope_theta": "model.rope_theta",
    "rope_parameters.rope_theta": "model.rope_theta",
    "max_position_embeddings": "model.max_position_embeddings",
    "vocab_size": "model.vocab_size",
    "tie_word_embeddings": "model.tie_word_embeddings",
    "hidden_act": "model.activation",
    "num_experts": "model.num_experts",
    "num_experts_per_tok": "model.num_experts_per_token",
    "moe_intermediate_size": "model.moe_intermediate_size",
    "norm_topk_prob": "model.norm_topk_prob",
    "attention_dropout": "model.attention_dropout",
}

CONFIG_IGNORED: dict[str, str] = {"*": "not used in training · 训练中不使用"}

_QWEN2 = ("qwen2", "qwen2_moe")
_QWEN3 = ("qwen3", "qwen3_moe")
_LLAMA_LIKE = ("llama", "mistral", *_QWEN2, *_QWEN3)


def _in_family(families: tuple[str, ...], value: ConfigLeaf) -> Callable[..., object]:
    return lambda kind: value if kind in families else NOT_SET


def _head_dim(width: ConfigLeaf, heads: ConfigLeaf) -> int | NotSet:
    a, b = number(width), number(heads)
    return NOT_SET if a is None or not b else int(a // b)


def _scaling(kind: ConfigLeaf) -> ConfigLeaf:
    return None if kind == "default" else kind


CONFIG_FORMULAS: tuple[Formula, ...] = (
    Formula(
        "model.qkv_bias",
        ("model_type",),
        _in_family(_QWEN2, True),
        "Qwen2 always has a bias on q, k and v",
    ),
    Formula("model.qkv_bias", ("attention_bias",), lambda bias: bias, "attention_bias"),
    Formula(
        "model.linear_bias",
        ("model_type",),
        _in_family(_LLAMA_LIKE, False),
        "this family has no other biases",
    ),
    Formula(
        "model.qk_norm",
        ("model_type",),
        lambda kind: kind in _QWEN3 if kind in _LLAMA_LIKE else NOT_SET,
        "Qwen3 normalises q and k, Qwen2 and Llama do not",
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
        _in_family(_LLAMA_LIKE, "rope"),
        "this family uses rotary embeddings",
    ),
    Formula(
        "model.hidden_dropout",
        ("model_type",),
        _in_family(_LLAMA_LIKE, 0.0),
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
    Formula(
        "model.rope_scaling_type",
        ("rope_parameters.rope_type",),
        _scaling,
        "rope_parameters.rope_type",
    ),
)
