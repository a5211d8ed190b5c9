"""The config.json that an architecture must have, from fields of the common schema."""

from __future__ import annotations

from align.core.config_value import ConfigLeaf
from align.frameworks.config_write import Fields

_KEYS = {
    "model.num_layers": "num_hidden_layers",
    "model.hidden_size": "hidden_size",
    "model.intermediate_size": "intermediate_size",
    "model.num_attention_heads": "num_attention_heads",
    "model.num_key_value_heads": "num_key_value_heads",
    "model.head_dim": "head_dim",
    "model.rms_norm_eps": "rms_norm_eps",
    "model.rope_theta": "rope_theta",
    "model.max_position_embeddings": "max_position_embeddings",
    "model.vocab_size": "vocab_size",
    "model.tie_word_embeddings": "tie_word_embeddings",
    "model.activation": "hidden_act",
    "model.num_experts": "num_experts",
    "model.num_experts_per_token": "num_experts_per_tok",
    "model.moe_intermediate_size": "moe_intermediate_size",
    "model.norm_topk_prob": "norm_topk_prob",
    "model.attention_dropout": "attention_dropout",
}


def config_json(values: Fields) -> dict[str, ConfigLeaf]:
    """Return the keys that config.json must hold, {} where the architecture is not known.

    The family follows from what only it has: Qwen2 a bias on q, k and v, Qwen3 a norm of q and k.
    """
    if "model.hidden_size" not in values:
        return {}
    keys = {key: values[name] for name, key in _KEYS.items() if values.get(name) is not None}
    family = _family(values)
    return {"model_type": family, **keys} if family else dict(keys)


def _family(values: Fields) -> str | None:
    bias, norm = values.get("model.qkv_bias"), values.get("model.qk_norm")
    moe = "_moe" if values.get("model.num_experts") else ""
    if bias is True and norm is False:
        return f"qwen2{moe}"
    if bias is False and norm is True:
        return f"qwen3{moe}"
    return None if moe or bias is None else "llama"
