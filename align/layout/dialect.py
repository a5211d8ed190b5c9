"""The layouts there are: a framework, and the variant of it that a run uses."""

from __future__ import annotations

from dataclasses import dataclass

from align.layout.family import Where


@dataclass(frozen=True, slots=True)
class Dialect:
    """One layout.

    Args:
        framework: "huggingface", "megatron" or "vllm".
        keys: of the forms it uses, the preferred first.
    """

    framework: str
    keys: tuple[str, ...]


HUGGINGFACE = Dialect("huggingface", ())  # on disk, and transformers 4 in memory
STACKED = Dialect("huggingface", ("stacked",))  # transformers 5 in memory: 3-D experts
MEGATRON_LOCAL = Dialect("megatron", ("megatron",))
MEGATRON_LOCAL_GROUPED = Dialect("megatron", ("megatron_grouped", "megatron"))
MEGATRON_TE = Dialect("megatron", ("megatron_te", "megatron"))
MEGATRON_TE_GROUPED = Dialect("megatron", ("megatron_te_grouped", "megatron_te", "megatron"))
# Megatron-core renames the norms of its local layers to TransformerEngine's when it saves them
TORCH_DIST = Dialect("megatron", ("torch_dist", "megatron_te", "megatron"))
TORCH_DIST_LOCAL = Dialect("megatron", ("torch_dist", "torch_dist_local", "megatron"))
VLLM = Dialect("vllm", ("vllm",))

DIALECTS = {
    "huggingface": (HUGGINGFACE, STACKED),
    "megatron": (
        MEGATRON_TE,
        MEGATRON_LOCAL,
        MEGATRON_LOCAL_GROUPED,
        MEGATRON_TE_GROUPED,
        TORCH_DIST,
        TORCH_DIST_LOCAL,
    ),
    "vllm": (VLLM,),
}
_LAYERS = {
    "huggingface": "model.layers.{i}.",
    "megatron": "decoder.layers.{i}.",
    "vllm": "model.layers.{i}.",
}


def full_name(framework: str, name: str, where: Where, layer: int) -> str:
    """Return a tensor's or module's whole name."""
    return name if where == "once" else _LAYERS[framework].format(i=layer) + name
