"""DeepSeek-V3 and R1: multi-head latent attention, dense first layers, shared and routed experts.

Megatron-core 0.12.1, and the local specification of later releases, cut the two down-projections
along axis 0 and gather their output; TransformerEngine's specification of later releases keeps them
whole on every rank. The reader tells which by their shape. The layer of
multi-token prediction (``model.layers.61``) has no rule: transformers does not load it either.
"""

from align.layout import blocks
from align.layout.family import Family, Form, Part, Rule, always
from align.layout.sizes import Sizes


def _with_q_lora(sizes: Sizes) -> bool:
    return sizes.q_lora > 0


def _without_q_lora(sizes: Sizes) -> bool:
    return sizes.q_lora == 0


def _norm(name: str, length: str, local: str, te: str) -> Rule:
    forms = {"megatron": Form(local), "megatron_te": Form(te)}
    when = _with_q_lora if length == "q_lora" else always
    return Rule((Part(name, (length,)),), forms, when=when)


def _linear(name: str, shape: tuple[str, ...], megatron: str, *, units: str = "") -> Rule:
    part = Part(f"self_attn.{name}.weight", shape, 0, units)
    when = {"q_proj": _without_q_lora, "q_a_proj": _with_q_lora, "q_b_proj": _with_q_lora}
    forms = {"megatron": Form(f"self_attention.{megatron}.weight")}
    return Rule((part,), forms, when=when.get(name, always))


_OUT = "self_attention."
_NEXT = "post_attention_layernorm.weight"
_PRE_MLP = "pre_mlp_layernorm.weight"

FAMILY = Family(
    model_types=("deepseek_v3",),
    rules=(
        *blocks.ENDS,
        blocks.norm("input_layernorm.weight", "input_layernorm.weight"),
        _linear("q_a_proj", ("q_lora", "hidden"), "linear_q_down_proj"),
        _linear("kv_a_proj_with_mqa", ("kv_a", "hidden"), "linear_kv_down_proj"),
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
        _linear("q_b_proj", ("mla_q", "q_lora"), "linear_q_up_proj", units="heads"),
        _linear("kv_b_proj", ("mla_kv", "kv_lora"), "linear_kv_up_proj", units="heads"),
        _linear("q_proj", ("mla_q", "hidden"), "linear_q_proj", units="heads"),
        blocks.one(
            "self_attn.o_proj.weight", ("hidden", "mla_out"), _OUT + "linear_proj.weight", 1
        ),
        blocks.norm(_NEXT, _PRE_MLP, "dense", megatron_te="mlp.linear_fc1.layer_norm_weight"),
        *blocks.DENSE,
        blocks.norm(_NEXT, _PRE_MLP, "experts"),
        blocks.ROUTER,
        blocks.ROUTER_BIAS,
        *blocks.EXPERTS,
        *blocks.feed_forward("mlp.shared_experts", "mlp.shared_experts", "shared_ffn", "experts"),
    ),
    modules=blocks.MODULES,
)
