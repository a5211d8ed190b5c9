"""Squared sums of each parameter's gradient, read just before the optimizer uses them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def gradient_squares(parameters: Iterable[tuple[str, nn.Parameter]]) -> tuple[list[str], Tensor]:
    """Return names and squared sums of the gradients this rank holds, one number a parameter.

    Shards of one parameter (FSDP, tensor parallel) add up over ranks; the norm is the root of the
    sum. Parameters without a gradient are left out.

    Returns:
        names, and float64 [names] on the gradients' device (float32 on an NPU).
    """
    names, squares = [], []
    with torch.no_grad():
        for name, parameter in parameters:
            if parameter.grad is not None:
                gradient = local(parameter.grad).detach()
                norm = torch.linalg.vector_norm(gradient, dtype=widest(gradient))
                names.append(plain_name(name))
                squares.append(norm.square())
    return names, torch.stack(squares) if squares else torch.zeros(0)


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def widest(tensor: Tensor) -> torch.dtype:
    """Return the widest float type that the tensor's device computes in."""
    return torch.float64 if tensor.device.type in ("cpu", "cuda") else torch.float32


def plain_name(name: str) -> str:
    """Return a parameter's or module's name without what wrappers put into it."""
    for wrapper in ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."):
        name = name.replace(wrapper, "")
    for wrapper in ("._fsdp_wrapped_module", "._checkpoint_wrapped_module", "._orig_mod"):
        name = name.removesuffix(wrapper)
    return name.removeprefix("module.")
