"""Llama 2 and 3, and Mistral with the same tensors."""

from align.layout import blocks
from align.layout.family import Family

FAMILY = Family(
    model_types=("llama", "mistral"),
    rules=(
        *blocks.ENDS,
        blocks.INPUT_NORM,
        *blocks.attention(),
        blocks.DENSE_NORM,
        *blocks.DENSE,
    ),
    modules=blocks.MODULES,
)
