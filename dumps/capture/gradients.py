"""Squared sums of each parameter's gradient, read just before the optimizer uses them."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dumps.capture.device import widest


def gradient_squares(parameters: Iterable[tuple[str, nn.Parameter]]) -> tuple[list[str], Tensor]:
    """Return names and squared sums of the gradients this rank holds, one number a parameter.

    Shards of one parameter (FSDP) add up over ranks; the norm is the root of the sum. Parameters
    without a gradient are left out.

    Returns:
        names, and float64 [names] on the gradients' device (float32 on an NPU).
    """
    return squares(
        (plain_name(name), parameter.grad)
        for name, parameter in parameters
        if parameter.grad is not None
    )


def squares(gradients: Iterable[tuple[str, Tensor]]) -> tuple[list[str], Tensor]:
    """Return names and squared sums of what this rank holds of each gradient.

    Returns:
        names, and float64 [names] on the gradients' device (float32 on an NPU).
    """
    names, sums = [], []
    with torch.no_grad():
        for name, gradient in gradients:
            own = local(gradient).detach()
            names.append(name)
            sums.append(torch.linalg.vector_norm(own, dtype=widest(own)).square())
    return names, torch.stack(sums) if sums else torch.zeros(0)


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@functools.lru_cache(maxsize=1 << 16)
def plain_name(name: str) -> str:
    """Return a parameter's or module's name without what wrappers put into it; "" of a wrapper.

    The wrappers are DDP, FSDP, Megatron's, torch.compile, checkpointing, and peft's.
    """
    for wrapper in ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."):
        name = name.replace(wrapper, "")
    for wrapper in ("._fsdp_wrapped_module", "._checkpoint_wrapped_module", "._orig_mod"):
        name = name.removesuffix(wrapper)
    name = name.replace(".base_layer.", ".")  # of an adapter, whose module is the whole layer
    for prefix in ("module.", "base_model.model."):
        while name.startswith(prefix):
            name = name.removeprefix(prefix)
    return "" if name in _ROOTS else name


_ROOTS = frozenset(
    ("module", "base_model", "base_model.model", "_orig_mod", "_fsdp_wrapped_module")
)
