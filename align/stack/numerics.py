"""Numerics profiles: other roundings of the same mathematics, as another device would have.

A profile imitates what a device or an engine does to the last bits. A difference between two
profiles is noise by construction and never a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from align.core.errors import ConfigError

# Layers whose input features tensor parallelism splits, so that partial results are all-reduced.
_ROW_PARALLEL = ("o_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class NumericsProfile:
    """How a model computes.

    Args:
        what: one line for people.
        dtype: of activations and of the weights as the layers see them.
        split_k: matrix products of linear layers are summed from this many parts, each rounded.
        all_reduce_ranks: row-parallel layers are summed from this many ranks' parts.
        all_reduce_dtype: to which those parts are rounded before the sum.
    """

    what: str
    dtype: torch.dtype = torch.float32
    split_k: int = 1
    all_reduce_ranks: int = 1
    all_reduce_dtype: torch.dtype | None = None


PROFILES: Mapping[str, NumericsProfile] = {
    "float64": NumericsProfile("everything in float64: the referee", torch.float64),
    "float32": NumericsProfile("everything in float32"),
    "float32_split_k": NumericsProfile(
        "float32; linear layers sum four partial products, in another order", split_k=4
    ),
    "float32_bfloat16_all_reduce": NumericsProfile(
        "float32; row-parallel layers sum two ranks' parts rounded to bfloat16",
        all_reduce_ranks=2,
        all_reduce_dtype=torch.bfloat16,
    ),
    "bfloat16": NumericsProfile(
        "weights and activations rounded to bfloat16, master weights in float32", torch.bfloat16
    ),
    "bfloat16_split_k": NumericsProfile(
        "bfloat16; linear layers sum four partial products, each rounded to bfloat16",
        torch.bfloat16,
        split_k=4,
    ),
}


def apply(profile: str, model: nn.Module) -> None:
    """Change how a model computes, in place; float64 alone changes its parameters' dtype.

    Parameter names, gradients' dtypes and `copy.deepcopy` keep working.

    Raises:
        ConfigError: There is no profile of that name.
    """
    if profile not in PROFILES:
        raise ConfigError(
            where="stack.numerics.profile",
            key=profile,
            problem="is no numerics profile",
            fix=f"use {', '.join(PROFILES)}",
        )
    chosen = PROFILES[profile]
    for name, module in model.named_modules():
        if type(module) is nn.Linear:
            _split(module, name.rpartition(".")[2], chosen)
    if chosen.dtype == torch.float64:
        model.double()
    elif chosen.dtype != torch.float32:
        compute_in(model, chosen.dtype)


def compute_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype of the model's activations, which may be narrower than its parameters'."""
    given = getattr(model, "_compute_dtype", None)
    return given if given is not None else next(model.parameters()).dtype


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Have a model see its parameters rounded to a dtype, in every forward pass.

    Gradients arrive at the parameters themselves, as with FSDP's mixed precision (param_dtype).
    """
    kind = type(model)
    model.__class__ = type(kind.__name__, (_Rounded, kind), {"__module__": kind.__module__})
    model._compute_dtype = dtype  # type: ignore[assignment]


class _Rounded:
    """The forward pass of the class after it, with parameters rounded to `_compute_dtype`."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__.get("_rounding", False):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        rounded = {name: p.to(self._compute_dtype) for name, p in self.named_parameters()}
        with _flag(self):
            return torch.func.functional_call(self, rounded, args, kwargs)


class SplitKLinear(nn.Linear):
    """A linear layer that sums partial products over slices of its input features."""

    parts: int
    part_dtype: torch.dtype | None

    def forward(self, input: Tensor) -> Tensor:
        """Compute input weightᵀ + bias; parts are rounded, then added in float32 at least."""
        total: Tensor | None = None
        slices = zip(input.chunk(self.parts, -1), self.weight.chunk(self.parts, -1), strict=True)
        for features, weight in slices:
            part = nn.functional.linear(features, weight)
            part = part if self.part_dtype is None else part.to(self.part_dtype)
            part = part.to(torch.promote_types(input.dtype, torch.float32))
            total = part if total is None else total + part
        assert total is not None
        if self.bias is not None:
            total = total + self.bias
        return total.to(input.dtype)


def _split(layer: nn.Linear, name: str, profile: NumericsProfile) -> None:
    parts, dtype = profile.split_k, None
    if profile.all_reduce_ranks > 1 and name in _ROW_PARALLEL:
        parts, dtype = profile.all_reduce_ranks, profile.all_reduce_dtype
    if parts > 1:
        layer.__class__ = SplitKLinear
        layer.parts, layer.part_dtype = parts, dtype  # type: ignore[assignment]


@contextmanager
def _flag(model: Any) -> Iterator[None]:
    model.__dict__["_rounding"] = True
    try:
        yield
    finally:
        model.__dict__["_rounding"] = False
