"""Qwen2 and Qwen2.5: grouped-query attention with biases on q, k and v."""

from align.layout import blocks
from align.layout.family import Family

FAMILY = Family(
    model_types=("qwen2",),
    rules=(
        *blocks.ENDS,
        blocks.INPUT_NORM,
        *blocks.attention(),
        blocks.DENSE_NORM,
        *blocks.DENSE,
    ),
    modules=blocks.MODULES,
)
