"""Fields that Megatron computes from several arguments; MindSpeed-RL's actor computes the same."""

from __future__ import annotations

from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import NOT_SET, Formula, NotSet, number

EXEMPT = "one-dimensional parameters and biases"


def _kv_heads(grouped: ConfigLeaf, groups: ConfigLeaf, heads: ConfigLeaf) -> ConfigLeaf:
    return groups if grouped else heads


def negated(value: ConfigLeaf) -> bool:
    """Return the opposite of a flag."""
    return not value


def _head_dim(channels: ConfigLeaf, hidden: ConfigLeaf, heads: ConfigLeaf) -> ConfigLeaf | NotSet:
    width, count = number(hidden), number(heads)
    if channels is not None or not width or not count:
        return NOT_SET if channels is None else channels
    return int(width // count)


def _is_moe(experts: ConfigLeaf, value: ConfigLeaf) -> ConfigLeaf | NotSet:
    return NOT_SET if experts is None else value


def _aux_loss(experts: ConfigLeaf, kind: ConfigLeaf, coefficient: ConfigLeaf) -> ConfigLeaf:
    return coefficient if experts is not None and kind == "aux_loss" else 0.0


def _reduce_dtype(bf16: ConfigLeaf, fp32: ConfigLeaf) -> str:
    return "float32" if bf16 or fp32 else "native"


def formulas(prefix: str) -> tuple[Formula, ...]:
    """Return the formulas on arguments whose names have this prefix, such as "actor."."""

    def keys(*names: str) -> tuple[str, ...]:
        return tuple(f"{prefix}{name}" for name in names)

    return (
        Formula(
            "model.num_key_value_heads",
            keys("group_query_attention", "num_query_groups", "num_attention_heads"),
            _kv_heads,
            "num_query_groups with group_query_attention, else num_attention_heads",
        ),
        Formula(
            "model.head_dim",
            keys("kv_channels", "hidden_size", "num_attention_heads"),
            _head_dim,
            "kv_channels, else hidden_size / num_attention_heads",
        ),
        Formula(
            "model.tie_word_embeddings",
            keys("untie_embeddings_and_output_weights"),
            negated,
            "not untie_embeddings_and_output_weights",
        ),
        Formula("model.linear_bias", keys("add_bias_linear"), lambda bias: bias, "add_bias_linear"),
        Formula(
            "model.activation",
            keys("swiglu"),
            lambda swiglu: "silu" if swiglu else "gelu",
            "silu with swiglu, else gelu",
        ),
        Formula(
            "model.num_experts_per_token",
            keys("num_experts", "moe_router_topk"),
            _is_moe,
            "moe_router_topk where there are experts",
        ),
        Formula(
            "model.norm_topk_prob",
            keys("num_experts", "norm_topk_prob"),
            _is_moe,
            "norm_topk_prob where there are experts",
        ),
        Formula(
            "model.router_score",
            keys("num_experts", "moe_router_score_function"),
            _is_moe,
            "moe_router_score_function where there are experts",
        ),
        Formula(
            "model.moe_aux_loss_coef",
            keys("num_experts", "moe_router_load_balancing_type", "moe_aux_loss_coeff"),
            _aux_loss,
            "moe_aux_loss_coeff with experts and load balancing aux_loss, else 0",
        ),
        Formula(
            "model.lora_rank",
            keys("lora_target_modules", "lora_r"),
            lambda targets, rank: rank if targets else 0,
            "lora_r where lora_target_modules is set, else 0",
        ),
        Formula(
            "actor.reduce_dtype",
            keys("bf16", "accumulate_allreduce_grads_in_fp32"),
            _reduce_dtype,
            "float32: Megatron sets accumulate_allreduce_grads_in_fp32 with bf16",
        ),
        Formula(
            "actor.optimizer",
            keys("optimizer"),
            lambda name: "adamw" if name == "adam" else name,
            "Megatron's adam decouples weight decay, as AdamW does",
        ),
    )
