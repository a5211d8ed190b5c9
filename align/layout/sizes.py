"""A model's sizes, as its tensors' shapes need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from align.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts and widths of one model; 0 for what it has none of."""

    layers: int
    hidden: int
    vocab: int
    heads: int
    groups: int
    head_dim: int
    ffn: int
    tied: bool
    qkv_bias: bool = False
    out_bias: bool = False
    experts: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    moe_layers: frozenset[int] = frozenset()
    router_bias: bool = False
    q_lora: int = 0
    kv_lora: int = 0
    nope: int = 0
    rope: int = 0
    value_dim: int = 0

    def length(self, name: str) -> int:
        """Return an axis length by the name that families use, such as "q" or "ffn"."""
        derived = {
            "q": self.heads * self.head_dim,
            "kv": self.groups * self.head_dim,
            "kv_a": self.kv_lora + self.rope,
            "mla_q": self.heads * (self.nope + self.rope),
            "mla_kv": self.heads * (self.nope + self.value_dim),
            "mla_out": self.heads * self.value_dim,
        }
        return derived[name] if name in derived else int(getattr(self, name))


def sizes_of(config: Mapping[str, Any], *, where: str) -> Sizes:
    """Read the sizes from a Hugging Face ``config.json``.

    Raises:
        ConfigError: A size is missing or no whole number.
    """

    def number(*names: str, default: int | None = None) -> int:
        for name in names:
            if isinstance(config.get(name), int):
                return int(config[name])
        if default is None:
            raise ConfigError(
                where=where,
                key=names[0],
                problem="is missing, and the tensors' shapes need it",
                fix="give the config.json of the model with --config",
            )
        return default

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    layers, experts = number("num_hidden_layers"), _experts(config)
    moe_ffn = number("moe_intermediate_size", default=0)
    return Sizes(
        layers=layers,
        hidden=hidden,
        vocab=number("vocab_size"),
        heads=heads,
        groups=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=hidden // max(heads, 1)),
        ffn=number("intermediate_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
        out_bias=bool(config.get("attention_bias", False)),
        experts=experts,
        moe_ffn=moe_ffn,
        shared_ffn=moe_ffn * number("n_shared_experts", default=0),
        moe_layers=_moe_layers(config, layers) if experts else frozenset(),
        router_bias=config.get("model_type") == "deepseek_v3",
        q_lora=number("q_lora_rank", default=0),
        kv_lora=number("kv_lora_rank", default=0),
        nope=number("qk_nope_head_dim", default=0),
        rope=number("qk_rope_head_dim", default=0),
        value_dim=number("v_head_dim", default=0),
    )


def _experts(config: Mapping[str, Any]) -> int:
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    return next((int(config[n]) for n in names if isinstance(config.get(n), int)), 0)


def _moe_layers(config: Mapping[str, Any], layers: int) -> frozenset[int]:
    """Tell which layers have experts, as transformers' Qwen3-MoE and DeepSeek-V3 do."""
    first = int(config.get("first_k_dense_replace") or 0)
    step = int(config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1)
    dense = frozenset(config.get("mlp_only_layers") or ())
    shift = 1 if "decoder_sparse_step" in config else 0
    return frozenset(i for i in range(first, layers) if i not in dense and (i + shift) % step == 0)
