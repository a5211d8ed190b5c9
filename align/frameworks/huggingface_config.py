"""A model's config.json, as transformers 4 and 5 write it.

transformers 5 keeps the rotary settings in ``rope_parameters`` (4: ``rope_theta`` and
``rope_scaling``), says ``dtype`` for ``torch_dtype``, writes ``layer_types`` out, and stores
Qwen3-MoE's ``num_experts`` as ``num_local_experts``. What a model class fixes by itself is no key;
it follows from ``model_type``. Checked against the configurations that transformers 5.10 saves.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue, Provenance, ProvenanceKind
from align.core.text import Text
from align.frameworks.config_table import ConfigView, number
from align.frameworks.huggingface_formulas import CONFIG_FORMULAS as CONFIG_FORMULAS
from align.frameworks.huggingface_harmless import CONFIG_IGNORED as CONFIG_IGNORED

READS_MODEL_CONFIG = True

CONFIG_SIGNS = ("architectures", "model_type", "transformers_version")

_OVERRIDES = (
    # attention
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank"),
    *("rope_interleave", "partial_rotary_factor", "attn_logit_softcapping", "attention_chunk_size"),
    *("final_logit_softcapping", "query_pre_attn_scalar", "full_attention_interval", "use_mrope"),
    *("use_bidirectional_attention", "_sliding_window_pattern", "sliding_window_pattern"),
    *("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
    *("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "index_topk"),
    *("linear_num_key_heads", "linear_num_value_heads", "attn_output_gate", "index_head_dim"),
    *("index_n_heads", "no_rope_layers", "no_rope_layer_interval", "attn_temperature_tuning"),
    *("add_qk_norm", "layernorm_compute_dtype", "layer_norm_eps", "norm_eps", "mup_width"),
    # experts
    *("n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace"),
    *("decoder_sparse_step", "mlp_only_layers", "moe_layer_freq", "n_group", "topk_group"),
    *("routed_scaling_factor", "topk_method", "seq_aux", "aux_loss_alpha", "router_jitter_noise"),
    *("moe_layers", "interleave_moe_layer_step", "num_shared_experts", "use_expert_bias"),
    # multimodal
    *("image_token_id", "video_token_id", "audio_token_id", "vision_start_token_id"),
    *("vision_end_token_id", "vision_token_id", "image_token_index", "boi_token_index"),
    *("eoi_token_index", "mm_tokens_per_image", "video_token_index", "tie_encoder_decoder"),
    *(
        "embd_pdrop",
        "resid_pdrop",
        "attn_pdrop",
        "activation_dropout",
        "dropout",
        "scale_embedding",
    ),
)

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
    "text_config.tie_word_embeddings": "model.override.text_tie_word_embeddings",
    "hidden_act": "model.activation",
    "hidden_activation": "model.activation",
    "num_experts": "model.num_experts",
    "n_routed_experts": "model.num_experts",
    "num_local_experts": "model.num_experts",
    "num_experts_per_tok": "model.num_experts_per_token",
    "moe_intermediate_size": "model.moe_intermediate_size",
    "norm_topk_prob": "model.norm_topk_prob",
    "scoring_func": "model.router_score",
    "attention_dropout": "model.attention_dropout",
    "qkv_bias": "model.qkv_bias",
    "mlp_bias": "model.linear_bias",
    "use_qk_norm": "model.qk_norm",
    "num_nextn_predict_layers": "model.mtp.num_layers",
    "mtp_num_hidden_layers": "model.mtp.num_layers",
    "attn_implementation": "model.attention_implementation",
    "_attn_implementation": "model.attention_implementation",
    "eos_token_id": "model.eos_token_id",
    "pad_token_id": "model.pad_token_id",
    "dtype": "model.checkpoint_dtype",
    "torch_dtype": "model.checkpoint_dtype",
    "rope_scaling.factor": "model.rope_scaling_factor",
    "rope_parameters.factor": "model.rope_scaling_factor",
    "rope_scaling.*": "model.override.rope_*",
    "rope_parameters.*": "model.override.rope_*",
    "quantization_config*": "model.override.quantization*",
    "vision_config.*": "model.override.vision.*",
    "audio_config.*": "model.override.audio.*",
    **{key: f"model.override.{key.lstrip('_')}" for key in _OVERRIDES},
}

_TEXT = "text_config."


def config_view(values: Mapping[str, ConfigValue], version: str | None) -> ConfigView:
    """Lay a nested text model open, and give latent attention the width of its heads.

    A key of ``text_config`` counts for the text model; ``tie_word_embeddings`` stands in both
    places, and which of them is read differs between versions: both are kept.
    """
    seen: dict[str, ConfigValue] = {}
    dead: dict[str, Text] = {}
    nested = {key.removeprefix(_TEXT) for key in values if key.startswith(_TEXT)}
    for key, value in values.items():
        inner = key.removeprefix(_TEXT)
        if key.startswith(_TEXT) and (inner != "tie_word_embeddings" or inner not in values):
            seen[inner] = value
        elif inner in nested and inner not in ("tie_word_embeddings", *_OF_THE_WHOLE):
            dead[key] = Text("text_config counts", "以 text_config 为准")
        else:
            seen.setdefault(key, value)
    width = _latent_width(seen)
    if width is not None:
        seen["head_dim"] = width
    return ConfigView(seen, dead)


_OF_THE_WHOLE = ("eos_token_id", "pad_token_id")


def _latent_width(values: Mapping[str, ConfigValue]) -> ConfigValue | None:
    """Return the width of a query head with latent attention; its ``head_dim`` is another one."""
    keys = ("qk_nope_head_dim", "qk_rope_head_dim")
    parts = [number(values[key].value) if key in values else None for key in keys]
    if "kv_lora_rank" not in values or parts[0] is None or parts[1] is None:
        return None
    place = values[keys[0]].provenance
    made = Provenance(ProvenanceKind.DERIVED, place.source, place.line, " + ".join(keys))
    total: ConfigLeaf = int(parts[0] + parts[1])
    return ConfigValue(", ".join(keys), total, made)
