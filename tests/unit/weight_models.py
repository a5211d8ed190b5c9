"""Tiny models of every family, saved as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": SMALL,
    "qwen2_tied": {**SMALL, "tie_word_embeddings": True},
    "llama": SMALL,
    "llama_bias": {**SMALL, "attention_bias": True},
    "qwen3": {**SMALL, "head_dim": 8},
    "qwen3_moe": {**SMALL, "head_dim": 8, **EXPERTS, "norm_topk_prob": True},
    "deepseek_v3": {
        **SMALL,
        "num_key_value_heads": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_shared_experts": 2,
        "first_k_dense_replace": 2,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
}


def save_model(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Save a model with random weights, every one different, norms and biases included."""
    torch.manual_seed(sum(map(ord, name)))
    kind = name.removesuffix("_tied").removesuffix("_bias")
    config = AutoConfig.for_model(kind, **CONFIGS[name])
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and tensor.dim() > 0:
                tensor.copy_(torch.randn_like(tensor) * 0.1)
        for name_, tensor in model.named_parameters():
            if "norm" in name_:
                tensor.add_(1.0)
    model.to(dtype).save_pretrained(folder)
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    """Read the model's config.json."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found
