"""Layers as one tensor with a leading axis, as ``torch_dist`` keeps equal layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from dumps.store.weights_writer import NewTensor

_LAYER = re.compile(r"(decoder\.layers)\.(\d+)\.(.+)")


def stack_layers(tensors: Sequence[NewTensor]) -> list[NewTensor]:
    """Stack the tensors of all layers, unless the layers differ in what they hold."""
    by_rest: dict[str, list[NewTensor]] = {}
    for tensor in tensors:
        match = _LAYER.fullmatch(tensor.name)
        name = f"{match.group(1)}.{match.group(3)}" if match else tensor.name
        by_rest.setdefault(name, []).append(tensor)
    layered = [group for name, group in by_rest.items() if name != group[0].name]
    if len({(len(group)) for group in layered}) > 1:
        return list(tensors)
    return [_stacked(name, group) for name, group in by_rest.items()]


def _stacked(name: str, group: list[NewTensor]) -> NewTensor:
    first = group[0]
    if name == first.name:
        return first
    return NewTensor(name, (len(group), *first.shape), first.dtype, partial(_stack, group))


def _stack(group: list[NewTensor]) -> Tensor:
    return torch.stack([tensor.make() for tensor in group])
