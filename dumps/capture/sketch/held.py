"""What one process holds of each parameter, whichever wrapper keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dumps.capture.gradients import local, plain_name

Block = tuple[Tensor, int, int]
"""Some rows and columns of a parameter, or elements of a vector, and where they begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A parameter, or the part of one that this process holds.

    Args:
        name: without what wrappers put into it.
        key: the parameter that optimizer and autograd know.
        segment: where it lies in a flat key, which holds several; None where the key is its own.
        shape: of the whole parameter.
        start: its first element in the whole parameter, laid out flat; None where the key's own
            placements say it.
        is_copy: another process holds the same.
    """

    name: str
    key: nn.Parameter
    shape: torch.Size
    segment: slice | None = None
    start: int | None = None
    is_copy: bool = False

    def value(self) -> Tensor:
        """Return what is held of the parameter."""
        return self.of(getattr(self.key, "_local_shard", self.key))

    def gradient(self) -> Tensor | None:
        """Return what is held of its gradient; Megatron keeps it beside the parameter."""
        gradient = getattr(self.key, "main_grad", None)
        gradient = self.key.grad if gradient is None else gradient
        return None if gradient is None else self.of(gradient)

    def of(self, tensor: Tensor) -> Tensor:
        """Return what a tensor like the key, such as an optimizer state, holds of the parameter."""
        own = local(tensor).detach()
        return own if self.segment is None else own.view(-1)[self.segment]

    def blocks(self, tensor: Tensor, owned: tuple[int, int] | None = None) -> list[Block] | None:
        """Return the blocks of the whole parameter that a tensor from `of` is; None if unknown.

        Args:
            owned: range of the flat parameter that this process has to itself; the tensor is
                that range alone, or all of which it is one.
        """
        if owned is not None:
            flat, (start, end) = tensor.reshape(-1), owned
            flat = flat if len(flat) == end - start else flat[start:end]
            return list(flat_blocks(flat, start, self.shape))
        if self.start is not None:
            return list(flat_blocks(tensor.reshape(-1), self.start, self.shape))
        if hasattr(self.key, "placements"):
            return _placed(self.key, tensor)
        return [(tensor, 0, 0)]


def held(model: nn.Module) -> Iterator[Held]:
    """Yield what this process holds of every parameter, in the order of the model."""
    flat = dict(_flat(model))
    for name, parameter in model.named_parameters():
        if "_flat_param" not in name and plain_name(name) not in flat:
            yield Held(plain_name(name), parameter, parameter.shape)
    yield from flat.values()


def gradient_share(model: nn.Module) -> float:
    """Return the factor by which a wrapper averages gradients over processes: 1 / processes."""
    for module in model.modules():
        if getattr(module, "_handle", None) is not None or hasattr(module, "reducer"):
            group: Any = module.process_group  # FSDP (version 1), DistributedDataParallel
            copies: Any = getattr(module, "_inter_node_pg", None)
            return 1.0 / int(group.size() * (1 if copies is None else copies.size()))
    for parameter in model.parameters():
        if hasattr(parameter, "device_mesh"):
            return 1.0 / int(parameter.device_mesh.size())
    return 1.0


def flat_blocks(flat: Tensor, start: int, shape: torch.Size) -> Iterator[Block]:
    """Yield the blocks of a matrix that a range of its elements is made of.

    Args:
        flat: [n], elements ``start`` to ``start + n`` of the flattened matrix.
        shape: of the matrix; one of more dimensions is laid out by its last one.
    """
    if len(shape) < 2:
        yield flat, start, 0
        return
    width, end = shape[-1], start + len(flat)
    while start < end:
        row, column = divmod(start, width)
        count = (end - start) // width * width if column == 0 else 0
        count = count or min(width - column, end - start)
        block, flat = flat[:count], flat[count:]
        yield block.view(-1, min(count, width)), row, column
        start += count


def _flat(model: nn.Module) -> Iterator[tuple[str, Held]]:
    """Yield the parameters that FSDP (version 1) keeps in flat ones, by plain name."""
    for prefix, module in model.named_modules():
        handle: Any = getattr(module, "_handle", None)
        parameter = getattr(handle, "flat_param", None)
        if parameter is None or not hasattr(parameter, "_shard_param_infos"):
            continue
        names, shapes = parameter._fqns, parameter._shapes
        copies = getattr(module, "_inter_node_pg", None)
        is_copy = (copies is not None and copies.rank() > 0) or _is_repeated(handle)
        originals: Mapping[str, nn.Parameter] = dict(
            zip(names, parameter._params or (), strict=False)
        )
        for name, shape, info in zip(names, shapes, parameter._shard_param_infos, strict=True):
            whole = plain_name(f"{prefix}.{name}" if prefix else name)
            key, segment = originals.get(name, parameter), None
            if key is parameter:
                segment = slice(
                    info.offset_in_shard, (info.offset_in_shard or 0) + (info.numel_in_shard or 0)
                )
            start = info.intra_param_start_idx or 0
            yield whole, Held(whole, key, shape, segment, start, is_copy)


def _is_repeated(handle: Any) -> bool:
    """Tell whether FSDP shards nothing, and another process has it all as well."""
    return not handle.uses_sharded_strategy and handle.process_group.rank() > 0


def _placed(parameter: Any, own: Tensor) -> list[Block] | None:
    """Return the block of a DTensor that this process holds, none where another holds it too."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = parameter.device_mesh, parameter.placements
    coordinates = mesh.get_coordinate()
    for placement, coordinate in zip(placements, coordinates, strict=True):
        if placement.is_replicate() and coordinate > 0:
            return []
        if placement.is_partial() or type(placement).__name__ == "_StridedShard":
            return None
    _, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    if own.ndim < 2:
        return [(own, offset[0] if offset else 0, 0)]
    middle = parameter.shape[1:-1]
    if own.shape[1:-1] != middle:
        return None
    return [(own.reshape(-1, own.shape[-1]), offset[0] * middle.numel(), offset[-1])]
