"""Move embeddings by one rounding unit, so that a run shows what rounding alone does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dumps.capture.gradients import plain_name
from dumps.capture.sketch.hash import signs

_SALT = 11
_MEGATRON = "embedding.word_embeddings"


def perturb_embeddings(model: nn.Module) -> RemovableHandle:
    """Multiply what the model's embedding puts out by 1 ± eps from here on, until removed.

    eps is that of the output's dtype, so that each element moves by one or two of its last places;
    the sign is that of a hash of the element's place, so that a run repeats itself.

    Raises:
        ValueError: The model has no embedding that transformers' ``get_input_embeddings`` gives,
            and none where Megatron has it.
    """
    embedding = _embedding(model)
    if embedding is None:
        raise ValueError("the model says no input embedding")

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return perturbed(output) if isinstance(output, Tensor) else None

    return embedding.register_forward_hook(hook)


def _embedding(model: nn.Module) -> nn.Module | None:
    find = getattr(model, "get_input_embeddings", None)
    found = None if find is None else find()
    if isinstance(found, nn.Module):
        return found
    modules = {plain_name(name): module for name, module in model.named_modules()}
    return modules.get(_MEGATRON)


def perturbed(tensor: Tensor) -> Tensor:
    """Return each element times 1 ± eps of its dtype."""
    keys = torch.arange(tensor.numel(), device=tensor.device)
    sign = signs(keys, _SALT, 1).reshape(tensor.shape)
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return (tensor.to(wide) * (1 + torch.finfo(tensor.dtype).eps * sign.to(wide))).to(tensor.dtype)
