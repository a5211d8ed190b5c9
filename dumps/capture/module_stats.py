"""Plain statistics of module outputs, taken by forward hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from dumps.capture.device import widest
from dumps.capture.failures import FailureLog
from dumps.capture.gradients import local, plain_name

COLUMNS = ("mean", "std", "absmax", "l2", "num_nan")


@dataclass(frozen=True, slots=True)
class ModuleOutput:
    """One output.

    Args:
        name: of the module, as Hugging Face has it.
        values: [5], by `COLUMNS`, on the output's device; over what is no NaN.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: Tensor


def hook_modules(
    root: nn.Module,
    pattern: str,
    log: FailureLog,
    is_wanted: Callable[[], bool],
    keep: Callable[[ModuleOutput], None],
) -> int:
    """Hook the modules whose name matches a shell pattern; return how many there are.

    Args:
        is_wanted: asked at each output whether to look at it.
        keep: called with each output that is a floating-point tensor, in forward order.
    """

    def keep_output(name: str, output: Any) -> None:
        with log.kept(f"module {name}"):
            tensor = _tensor(output) if is_wanted() else None
            if tensor is not None:
                values = statistics(tensor)
                keep(ModuleOutput(name, tuple(tensor.shape), str(tensor.dtype), values))

    count = 0
    for name, module in root.named_modules():
        if fnmatchcase(plain_name(name), pattern):
            module.register_forward_hook(_hook(plain_name(name), keep_output))
            count += 1
    return count


def statistics(tensor: Tensor) -> Tensor:
    """Return [5]: mean, population standard deviation, largest absolute value, L2 norm, NaNs."""
    with torch.no_grad():
        wide = local(tensor).detach().to(widest(tensor)).flatten()
        nan = torch.isnan(wide)
        count = (~nan).sum()
        filled = torch.where(nan, torch.zeros_like(wide), wide)
        mean = filled.sum() / count
        spread = torch.where(nan, torch.zeros_like(wide), filled - mean).square().sum() / count
        largest = filled.abs().amax() if wide.numel() else mean
        l2 = torch.linalg.vector_norm(filled)
        return torch.stack([mean, spread.sqrt(), largest, l2, nan.sum().to(wide.dtype)])


def _hook(name: str, keep_output: Callable[[str, Any], None]) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        keep_output(name, output)

    return hook


def _tensor(output: Any) -> Tensor | None:
    """Return the tensor of an output: itself, the first of a tuple, or a model's logits."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    elif not isinstance(output, Tensor):
        output = getattr(output, "logits", None)
    return output if isinstance(output, Tensor) and output.is_floating_point() else None
