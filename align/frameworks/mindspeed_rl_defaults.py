"""Values of MindSpeed-RL configuration keys that are not set: its configuration classes' own."""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigValue
from align.frameworks.config_table import Default, assumed_defaults
from align.frameworks.mindspeed_rl_eras import ASSUMED_VERSION, BEFORE, defaults_of, era_of

# In the loss of before 2025-05-15 neither key is read.
UNREAD_BEFORE = ("rl_config.entropy_coeff", "rl_config.kl_penalty")


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None
) -> Mapping[str, Default]:
    """Return what applies where a key is not set: the defaults of its configuration classes.

    A section that is absent as a whole (a DPO run has no ``rl_config``) has no defaults.
    """
    sections = {key.partition(".")[0] for key in values}
    era = era_of(version)
    source = f"default of MindSpeed-RL {era or ASSUMED_VERSION}"
    assumption = None if era else assumed_defaults("MindSpeed-RL", ASSUMED_VERSION, version)
    unknown = () if "actor.hidden_size" in values else _IN_MODEL_FILE
    unread = UNREAD_BEFORE if era == BEFORE else ()
    return {
        key: Default(value, source, assumption)
        for key, value in defaults_of(era or ASSUMED_VERSION).items()
        if key.partition(".")[0] in sections and key not in (*unknown, *unread)
    }


# What a model file sets: unknown, not default, where that file is not at hand.
_IN_MODEL_FILE = frozenset(
    f"actor.{key}"
    for key in (
        *("norm_epsilon", "rotary_base", "normalization", "position_embedding_type", "swiglu"),
        *("add_qkv_bias", "disable_bias_linear", "qk_layernorm", "group_query_attention"),
        *("num_query_groups", "kv_channels", "untie_embeddings_and_output_weights"),
        *("num_experts", "moe_router_topk", "norm_topk_prob", "moe_router_score_function"),
        *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_grouped_gemm"),
        *("attention_softmax_in_fp32", "rope_scaling_type", "rope_scaling_factor"),
        *("multi_latent_attention", "multi_head_latent_attention", "q_lora_rank"),
        *("kv_lora_rank", "seq_aux"),
    )
)
