"""DeepSeek-V3 and R1: multi-head latent attention, dense first layers, shared and routed experts.

Megatron-core 0.12.1 cuts the two down-projections along axis 0 and gathers their output; later
releases keep them whole on every rank, which the reader tells by their shape. The layer of
multi-token prediction (``model.layers.61``) has no rule: transformers does not load it either.
"""

from align.layout import blocks
from align.layout.family import Family, Form, Part, Rule
from align.layout.sizes import Sizes


def _with_q_lora(sizes: Sizes) -> bool:
    return sizes.q_lora > 0


def _without_q_lora(sizes: Sizes) -> bool:
    return sizes.q_lora == 0


def _norm(name: str, length: str, local: str, te: str) -> Rule:
    forms = {"megatron": Form(local), "megatron_te": Form(te)}
    when = _with_q_lora if length == "q_lora" else (lambda sizes: True)
    return Rule((Part(name, (length,)),), forms, when=when)


_DOWN = (
    Part("self_attn.q_a_proj.weight", ("q_lora", "hidden"), 0),
    Part("self_attn.kv_a_proj_with_mqa.weight", ("kv_a", "hidden"), 0),
)
_UP = (
    Part("self_attn.q_b_proj.weight", ("mla_q", "q_lora"), 0, "heads"),
    Part("self_attn.kv_b_proj.weight", ("mla_kv", "kv_lora"), 0, "heads"),
)
_DIRECT = Part("self_attn.q_proj.weight", ("mla_q", "hidden"), 0, "heads")
_OUT = "self_attention."

FAMILY = Family(
    model_types=("deepseek_v3",),
    rules=(
        *blocks.ENDS,
        blocks.norm("input_layernorm.weight", "input_layernorm.weight"),
        Rule((_DOWN[0],), {"megatron": Form(_OUT + "linear_q_down_proj.weight")}, when=_with_q_lora),
        Rule((_DOWN[1],), {"megatron": Form(_OUT + "linear_kv_down_proj.weight")}),
        _norm(
            "self_attn.q_a_layernorm.weight",
            "q_lora",
            _OUT + "q_layernorm.weight",
            _OUT + "linear_q_up_proj.layer_norm_weight",
        ),
        _norm(
            "self_attn.kv_a_layernorm.weight",
            "kv_lora",
            _OUT + "kv_layernorm.weight",
            _OUT + "linear_kv_up_proj.layer_norm_weight",
        ),
        Rule((_UP[0],), {"megatron": Form(_OUT + "linear_q_up_proj.weight")}, when=_with_q_lora),
        Rule((_UP[1],), {"megatron": Form(_OUT + "linear_kv_up_proj.weight")}),
        Rule((_DIRECT,), {"megatron": Form(_OUT + "linear_q_proj.weight")}, when=_without_q_lora),
        blocks.one("self_attn.o_proj.weight", ("hidden", "mla_out"), _OUT + "linear_proj.weight", 1),
        blocks.DENSE_NORM,
        *blocks.DENSE,
        blocks.EXPERTS_NORM,
        blocks.ROUTER,
        blocks.ROUTER_BIAS,
        *blocks.EXPERTS,
        *blocks.feed_forward("mlp.shared_experts", "mlp.shared_experts", "shared_ffn", "experts"),
    ),
    modules=blocks.MODULES,
)
