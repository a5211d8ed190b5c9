"""Which framework a set of tensor names comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable

WRAPPERS = ("module.", "base_model.model.")
_NOT_WEIGHTS = re.compile(r"_extra_state|rotary_emb\.inv_freq$|\.local_tokens_per_expert$")
_FUSED = ("qkv_proj.", "gate_up_proj.weight", "experts.w13_weight", "experts.w2_weight")


def unwrapped(name: str) -> str:
    """Return a tensor's name without the prefixes and infixes that wrappers add."""
    name = name.replace("_fsdp_wrapped_module.", "").replace("_orig_mod.", "")
    for prefix in WRAPPERS:
        while name.startswith(prefix):
            name = name[len(prefix) :]
    return name


def is_weight(name: str) -> bool:
    """Tell a parameter from what modules keep beside it and no conversion needs."""
    return not _NOT_WEIGHTS.search(name)


def framework_of(names: Iterable[str]) -> str:
    """Return "huggingface", "megatron" or "vllm"."""
    seen = list(names)
    if any(name.startswith(("decoder.", "embedding.", "output_layer.")) for name in seen):
        return "megatron"
    return "vllm" if any(mark in name for name in seen for mark in _FUSED) else "huggingface"
