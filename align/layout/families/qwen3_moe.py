"""Qwen3-MoE: Qwen3's attention, experts in most layers, no shared expert."""

from align.layout import blocks
from align.layout.family import Family

FAMILY = Family(
    model_types=("qwen3_moe",),
    rules=(
        *blocks.ENDS,
        blocks.INPUT_NORM,
        *blocks.attention(qk_norm=True),
        blocks.DENSE_NORM,
        *blocks.DENSE,
        blocks.EXPERTS_NORM,
        blocks.ROUTER,
        *blocks.EXPERTS,
    ),
    modules=blocks.MODULES,
)
