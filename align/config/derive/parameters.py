"""Number of parameters of a decoder, from its architecture."""

from __future__ import annotations

from dataclasses import dataclass

from align.config.derive.quantity import Values, number, numbers, value_of

_NEEDED = (
    "model.num_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.num_key_value_heads",
    "model.vocab_size",
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of parameters.

    Args:
        embeddings: of the embedding and, where it is not tied, the output layer.
        layers: of all layers, experts excluded, with the last norm.
        experts: of all experts of all layers.
    """

    embeddings: int
    layers: int
    experts: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embeddings + self.layers + self.experts


def parameters(values: Values) -> Parameters | None:
    """Count the parameters of a gated decoder with RMSNorm; None where it is not known enough.

    Every layer of a mixture of experts is taken to be one; shared experts are not counted.
    """
    sizes = numbers(values, _NEEDED)
    if sizes is None or min(sizes) <= 0:
        return None
    layers, hidden, heads, kv_heads, vocabulary = map(int, sizes)
    width = int(number(values, "model.head_dim") or hidden // heads)
    attention = hidden * width * (2 * heads + 2 * kv_heads)
    if value_of(values, "model.qkv_bias"):
        attention += width * (heads + 2 * kv_heads)
    if value_of(values, "model.qk_norm"):
        attention += 2 * width
    num_experts = int(number(values, "model.num_experts") or 0)
    inner = "model.moe_intermediate_size" if num_experts else "model.intermediate_size"
    mlp_width = number(values, inner)
    if mlp_width is None:
        return None
    mlp = 3 * hidden * int(mlp_width)
    router, dense = (num_experts * hidden, 0) if num_experts else (0, mlp)
    tied = bool(value_of(values, "model.tie_word_embeddings"))
    return Parameters(
        embeddings=vocabulary * hidden * (1 if tied else 2),
        layers=layers * (attention + dense + router + 2 * hidden) + hidden,
        experts=layers * num_experts * mlp,
    )
