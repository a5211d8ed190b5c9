"""Under which addresses the features of a module's output are recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from align.layout.address import Address
from align.layout.blocks import ROUTING
from dumps.capture.gradients import local
from dumps.capture.sketch.local import Local


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Some features of an output, one after the other in the canonical tensor.

    Args:
        columns: their places in the output, None for all of them.
        first: canonical index of the first.
        is_whole: every tensor-parallel rank puts them out.
    """

    name: str
    columns: slice | Tensor | None = None
    first: int = 0
    is_whole: bool = False

    def of(self, rows: Tensor) -> Tensor:
        """Return the features from the rows [tokens, features] of an output."""
        if self.columns is None:
            return rows
        if isinstance(self.columns, slice):
            return rows[:, self.columns]
        return rows.index_select(1, self.columns.to(rows.device))


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One tensor of a module's output.

    Args:
        name: of the module, or of the part of its output.
        chosen: int64 [tokens, k], which of all experts the tensor is of.
        width: the number of experts.
    """

    name: str
    tensor: Tensor
    chosen: Tensor | None = None
    width: int = 0

    def dense(self, tensor: Tensor) -> Tensor:
        """Return a tensor like the one read with all its features."""
        return dense(tensor, self.chosen, self.width)


def dense(tensor: Tensor, chosen: Tensor | None, width: int) -> Tensor:
    """Return a tensor with all its features, given those chosen of them; see `Reading`."""
    if chosen is None:
        return tensor
    return tensor.new_zeros(len(tensor), width).scatter(1, chosen, tensor)


def targets_of(name: str, addresses: Mapping[str, tuple[Address, ...]]) -> tuple[Target, ...]:
    """Return the targets of one module; none where no address is known."""
    return tuple(_target(address) for address in addresses.get(name, ()))


def output_targets(name: str, own: Local) -> tuple[Target, ...]:
    """Return the targets of a module's output or a part of it."""
    return (Target(name),) if own.outputs is None else targets_of(name, own.outputs)


def readings(name: str, output: Any) -> Iterator[Reading]:
    """Return the tensors to record of what a module put out: the first, and a router's choice."""
    tensor = first_tensor(output)
    if tensor is not None:
        yield Reading(name, tensor)
    if tensor is not None and isinstance(output, tuple) and len(output) == 3:
        _, weights, chosen = output
        if _is_choice(tensor, weights, chosen):
            yield Reading(f"{name}.{ROUTING}", weights, chosen, tensor.shape[-1])


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor of a module's output, None where it is no floating-point one."""
    if isinstance(output, Tensor):
        pass
    elif isinstance(output, tuple | list):
        output = output[0] if output else None
    elif isinstance(output, Mapping):
        output = next(iter(output.values()), None)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return None
    return local(output)


def _is_choice(logits: Tensor, weights: Any, chosen: Any) -> bool:
    """Tell a router's logits, weights of the chosen experts, and their numbers."""
    return (
        isinstance(weights, Tensor)
        and isinstance(chosen, Tensor)
        and weights.is_floating_point()
        and chosen.dtype == torch.int64
        and weights.ndim == chosen.ndim == logits.ndim == 2
        and weights.shape == chosen.shape
    )


def _target(address: Address) -> Target:
    columns, features = address.columns, address.features
    first, count = int(features[0]), len(features)
    if int(features[-1]) - first != count - 1:
        raise ValueError(f"the features of {address.name} do not follow one another")
    start = int(columns[0])
    is_run = int(columns[-1]) - start == count - 1
    return Target(
        address.name,
        slice(start, start + count) if is_run else columns,
        first,
        address.is_whole,
    )
