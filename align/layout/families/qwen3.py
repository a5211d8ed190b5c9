"""Qwen3: a norm over each query and key head, no biases."""

from align.layout import blocks
from align.layout.family import Family

FAMILY = Family(
    model_types=("qwen3",),
    rules=(
        *blocks.ENDS,
        blocks.INPUT_NORM,
        *blocks.attention(qk_norm=True),
        blocks.DENSE_NORM,
        *blocks.DENSE,
    ),
    modules=blocks.MODULES,
)
