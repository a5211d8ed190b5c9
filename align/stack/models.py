"""Models: a Hugging Face causal LM folder, or a tiny random one of three architectures."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from align.core.errors import ConfigError
from align.stack import attention
from align.stack.tokenizer import END_OF_TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from align.stack.config import StackConfig

_TINY: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.05,  # deep enough a start for a short warm-up
}
_MOE: Mapping[str, Any] = {
    "moe_intermediate_size": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,  # as Qwen3-MoE's published models
}
_BUILT_IN: Mapping[str, Callable[..., PreTrainedConfig]] = {
    "tiny-qwen2": lambda **keys: Qwen2Config(**{**_TINY, **keys}),
    "tiny-qwen3": lambda **keys: Qwen3Config(**{**_TINY, **keys}),
    "tiny-qwen3-moe": lambda **keys: Qwen3MoeConfig(**{**_TINY, **_MOE, **keys}),
}


def build_model(config: StackConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Build the model in float32: weights of the folder, or random ones of ``stack.seed``.

    ``model.override_config`` replaces keys of the model's own config.json, as in verl. Attention
    is our own `attention` function unless ``attn_implementation`` is among them. The global
    random state is left as it was.

    Raises:
        ConfigError: The folder holds no causal LM, or an override is no key of its config.
    """
    overrides = dict(config.model.override_config)
    kind = str(overrides.pop("attn_implementation", attention.NAME))
    path = config.model.path
    model: PreTrainedModel
    if path in _BUILT_IN:
        model = _random_model(path, overrides, tokenizer, kind, config.stack.seed)
    else:
        model = _from_folder(path, overrides, kind)
    if hasattr(model, "set_experts_implementation"):  # transformers 5; grouped_mm has no float64
        model.set_experts_implementation("eager")
    attention.choose_softmax(model, in_float32=config.stack.numerics.softmax_float32)
    model.train()
    return model


def _random_model(
    name: str, overrides: dict[str, Any], tokenizer: PreTrainedTokenizerFast, kind: str, seed: int
) -> PreTrainedModel:
    _refuse_unknown(overrides, _BUILT_IN[name](), name)
    vocabulary = tokenizer.get_vocab()
    ends = [tokenizer.eos_token_id, vocabulary.get(END_OF_TEXT, tokenizer.eos_token_id)]
    settings = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": ends[0],
        "pad_token_id": tokenizer.pad_token_id,
        **overrides,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            _BUILT_IN[name](**settings), attn_implementation=kind, dtype=torch.float32
        )
    # Qwen's Instruct models stop at either; config.json names the first alone.
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=list(dict.fromkeys(ends)), pad_token_id=tokenizer.pad_token_id
    )
    return model


def _from_folder(path: str, overrides: dict[str, Any], kind: str) -> PreTrainedModel:
    try:
        _refuse_unknown(overrides, AutoConfig.from_pretrained(path, local_files_only=True), path)
        settings = AutoConfig.from_pretrained(path, local_files_only=True, **overrides)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path,
            config=settings,
            attn_implementation=kind,
            dtype=torch.float32,
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            where=path,
            problem=f"holds no causal language model ({str(error).splitlines()[0]})",
            fix="give a Hugging Face folder with config.json and model.safetensors",
        ) from error
    return model


def _refuse_unknown(overrides: Mapping[str, Any], known: PreTrainedConfig, where: str) -> None:
    names = [name for name in {**known.to_dict(), "rope_theta": None} if not name.startswith("_")]
    for key in overrides:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
            raise ConfigError(
                where=where,
                key=f"actor_rollout_ref.model.override_config.{key}",
                problem="is not a key of this model's config",
                fix=f"did you mean {near[0]}?",
            )
