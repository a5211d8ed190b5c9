"""Rules that several families share: embeddings, norms, attention, feed-forward, experts."""

from __future__ import annotations

from align.layout.family import Form, Part, Rule, Where, always
from align.layout.ops import Chain, Fold, GroupHeads, Join, Op, Stack, Transpose
from align.layout.sizes import Sizes


def grouped_heads(sizes: Sizes, ranks: int, experts: int) -> Op:
    """Build Megatron's linear_qkv."""
    return GroupHeads(sizes.heads // ranks, max(1, sizes.groups // ranks))


def joined_heads(sizes: Sizes, ranks: int, experts: int) -> Op:
    """Build vLLM's qkv_proj."""
    groups = max(1, sizes.groups // ranks)
    return Join((sizes.heads // ranks, groups, groups))


def halves(sizes: Sizes, ranks: int, experts: int) -> Op:
    """Build gate and up as one tensor: each rank has its part of both."""
    return Join((1, 1))


def stacked_halves(sizes: Sizes, ranks: int, experts: int) -> Op:
    """Build gate and up of all experts as one 3-D tensor."""
    return Chain((Join((1, 1)), Stack(experts)))


def stacked(sizes: Sizes, ranks: int, experts: int) -> Op:
    """Build one 3-D tensor of all experts."""
    return Stack(experts)


def grouped_first(sizes: Sizes, ranks: int, experts: int) -> Op:
    """Build Megatron's weight1 [hidden, experts · 2 ffn], a view of [experts, hidden, 2 ffn]."""
    return Chain((Join((1, 1)), Stack(experts), Transpose(), Fold(experts, "inner")))


def grouped_second(sizes: Sizes, ranks: int, experts: int) -> Op:
    """Build Megatron's weight2 [experts · ffn, hidden], a view of [experts, ffn, hidden]."""
    return Chain((Stack(experts), Transpose(), Fold(experts, "outer")))


def norm(name: str, local: str, where: Where = "every", **others: str) -> Rule:
    """Return the rule of a norm over the hidden state.

    Args:
        local: Megatron's name of it as a module of its own.
        others: names by further dialect keys; TransformerEngine fuses some into the next linear.
    """
    forms = {"megatron": Form(local), **{key: Form(other) for key, other in others.items()}}
    return Rule((Part(name, ("hidden",)),), forms, where)


def one(name: str, shape: tuple[str, ...], megatron: str, axis: int | None = None) -> Rule:
    """Return the rule of a tensor that Megatron only renames."""
    return Rule((Part(name, shape, axis),), {"megatron": Form(megatron)})


def feed_forward(prefix: str, megatron: str, width: str, where: Where) -> tuple[Rule, ...]:
    """Return the rules of a gated feed-forward block."""
    shape = (width, "hidden")
    gate_up = (
        Part(f"{prefix}.gate_proj.weight", shape, 0),
        Part(f"{prefix}.up_proj.weight", shape, 0),
    )
    first = {
        "megatron": Form(f"{megatron}.linear_fc1.weight", halves),
        "vllm": Form(f"{prefix}.gate_up_proj.weight", halves),
    }
    down = Part(f"{prefix}.down_proj.weight", ("hidden", width), 1)
    return (
        Rule(gate_up, first, where),
        Rule((down,), {"megatron": Form(f"{megatron}.linear_fc2.weight")}, where),
    )


def attention(*, qk_norm: bool = False) -> tuple[Rule, ...]:
    """Return the rules of grouped-query attention."""
    norms = (_head_norm("q", "heads"), _head_norm("k", "groups"))
    return (
        _heads("weight"),
        _heads("bias"),
        one("self_attn.o_proj.weight", ("hidden", "q"), "self_attention.linear_proj.weight", 1),
        Rule(
            (Part("self_attn.o_proj.bias", ("hidden",)),),
            {"megatron": Form("self_attention.linear_proj.bias")},
            when=_with_out_bias,
        ),
        *(norms if qk_norm else ()),
    )


def _head_norm(which: str, repeats: str) -> Rule:
    part = Part(f"self_attn.{which}_norm.weight", ("head_dim",), repeats=repeats)
    return Rule((part,), {"megatron": Form(f"self_attention.{which}_layernorm.weight")})


def _heads(kind: str) -> Rule:
    tail = ("hidden",) if kind == "weight" else ()
    parts = (
        Part(f"self_attn.q_proj.{kind}", ("q", *tail), 0, "heads"),
        Part(f"self_attn.k_proj.{kind}", ("kv", *tail), 0, "groups"),
        Part(f"self_attn.v_proj.{kind}", ("kv", *tail), 0, "groups"),
    )
    forms = {
        "megatron": Form(f"self_attention.linear_qkv.{kind}", grouped_heads),
        "vllm": Form(f"self_attn.qkv_proj.{kind}", joined_heads),
    }
    return Rule(parts, forms, when=always if kind == "weight" else _with_bias)


def _with_bias(sizes: Sizes) -> bool:
    return sizes.qkv_bias


def _with_out_bias(sizes: Sizes) -> bool:
    return sizes.out_bias


EXPERTS = (
    Rule(
        (
            Part("mlp.experts.{e}.gate_proj.weight", ("moe_ffn", "hidden"), 0),
            Part("mlp.experts.{e}.up_proj.weight", ("moe_ffn", "hidden"), 0),
        ),
        {
            "stacked": Form("mlp.experts.gate_up_proj", stacked_halves),
            "megatron": Form("mlp.experts.local_experts.{e}.linear_fc1.weight", halves),
            "megatron_grouped": Form("mlp.experts.weight1", grouped_first),
            "megatron_te_grouped": Form("mlp.experts.linear_fc1.weight{e}", halves),
            "torch_dist": Form("mlp.experts.experts.linear_fc1.weight", stacked_halves),
            "vllm": Form("mlp.experts.w13_weight", stacked_halves),
        },
        "experts",
    ),
    Rule(
        (Part("mlp.experts.{e}.down_proj.weight", ("hidden", "moe_ffn"), 1),),
        {
            "stacked": Form("mlp.experts.down_proj", stacked),
            "megatron": Form("mlp.experts.local_experts.{e}.linear_fc2.weight"),
            "megatron_grouped": Form("mlp.experts.weight2", grouped_second),
            "megatron_te_grouped": Form("mlp.experts.linear_fc2.weight{e}"),
            "torch_dist": Form("mlp.experts.experts.linear_fc2.weight", stacked),
            "vllm": Form("mlp.experts.w2_weight", stacked),
        },
        "experts",
    ),
)
ROUTER = Rule(
    (Part("mlp.gate.weight", ("experts", "hidden")),),
    {"megatron": Form("mlp.router.weight")},
    "experts",
)
ROUTER_BIAS = Rule(
    (Part("mlp.gate.e_score_correction_bias", ("experts",)),),
    {"megatron": Form("mlp.router.expert_bias")},
    "experts",
)


EMBEDDING = Rule(
    (Part("model.embed_tokens.weight", ("vocab", "hidden"), 0),),
    {"megatron": Form("embedding.word_embeddings.weight")},
    "once",
)
FINAL_NORM = norm("model.norm.weight", "decoder.final_layernorm.weight", "once")
HEAD = Rule(
    (Part("lm_head.weight", ("vocab", "hidden"), 0),),
    {"megatron": Form("output_layer.weight")},
    "once",
)
ENDS = (EMBEDDING, FINAL_NORM, HEAD)

_NEXT = "post_attention_layernorm.weight"
_IN_QKV = "self_attention.linear_qkv.layer_norm_weight"
_IN_FC1 = "mlp.linear_fc1.layer_norm_weight"
INPUT_NORM = norm(
    "input_layernorm.weight",
    "input_layernorm.weight",
    megatron_te=_IN_QKV,
    torch_dist_local=_IN_QKV,
)
DENSE_NORM = norm(
    _NEXT, "pre_mlp_layernorm.weight", "dense", megatron_te=_IN_FC1, torch_dist_local=_IN_FC1
)
EXPERTS_NORM = norm(_NEXT, "pre_mlp_layernorm.weight", "experts", torch_dist_local=_IN_FC1)
DENSE = feed_forward("mlp", "mlp", "ffn", "dense")

ROUTING = "routing"
"""Weight of each expert for a token, zero for those not chosen: what Megatron's router puts out and
transformers 5 spells as the chosen experts and theirs."""

MODULES = {
    "": "",
    "self_attention": "self_attn",
    "mlp": "mlp",
    "mlp.router": f"mlp.gate.{ROUTING}",
}
PASSING = (
    "self_attention.q_layernorm",  # an identity, unless a family has a rule for its weight
    "self_attention.k_layernorm",
    "self_attention.core_attention",  # puts out the recorded input of linear_proj
    "self_attention.core_attention.scale_mask_softmax",  # of no module in transformers
    "self_attention.core_attention.attention_dropout",
    "pre_cross_attn_layernorm",
    "cross_attention",
)
"""Megatron's modules of a layer that put out nothing of their own."""
