"""All that a capture has to know of the device it runs on: CPU, CUDA, NPU or another accelerator.

Everything else in `dumps.capture` takes the device from the tensors it is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

KINDS = ("npu", "cuda")

_ALIGNED_BYTES = 16
_LARGEST = torch.finfo(torch.float32).max


def accelerator() -> str | None:
    """Return the kind of accelerator that torch has here, "npu" or "cuda"; None without one."""
    for kind in KINDS:
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            return kind
    return None


def widest(tensor: Tensor) -> torch.dtype:
    """Return the widest float type that the tensor's device computes in: an NPU has no float64."""
    return torch.float64 if tensor.device.type in ("cpu", "cuda") else torch.float32


def block_elements(device: torch.device) -> int:
    """Return how much of a tensor to sum up at once: 1 MB a thread on a CPU, and 4 MB at most, as
    much as its caches keep from one sum to the next; 64 MB elsewhere, which bounds the copy in
    float32 and is worth launching kernels for.
    """
    return min(4, torch.get_num_threads()) << 18 if device.type == "cpu" else 1 << 24


def extremes(
    block: Tensor, least: Tensor | None = None, largest: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the least and the largest number, NaN where one is.

    On a CPU one by one: in half the time of `torch.aminmax` on a block that its cache holds.

    Args:
        least, largest: where they go on a CPU.
    """
    if block.device.type != "cpu":
        found = torch.aminmax(block)
        return found.min, found.max
    return torch.amin(block, (), out=least), torch.amax(block, (), out=largest)


def square_sum(block: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the sum of squares of a float32 block, in float32.

    On a CPU by a dot product: `torch.linalg.vector_norm` adds up one after another there, is 7e-6
    off after 700,000 elements and 1 % after 100 million, and takes twice as long.

    Args:
        out: where it goes on a CPU.
    """
    if block.device.type != "cpu":
        norm: Tensor = torch.linalg.vector_norm(block)
        return norm.square()
    flat = block.reshape(-1)
    return torch.dot(flat, flat, out=out)


def may_be_special(squares: Tensor) -> bool:
    """Tell whether a tensor of this sum of squares may hold NaN or infinity.

    Asking an accelerator for the number would wait for it, so there the answer is always yes.
    """
    return squares.device.type != "cpu" or not squares.item() <= _LARGEST


def is_full_float32(device: torch.device) -> bool:
    """Tell whether float32 products are computed in float32 as things are."""
    owner, name, full = _products(device.type)
    is_full = getattr(owner, name, full[0]) in full
    return is_full and not torch.is_autocast_enabled(device.type)


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Compute in real float32 within: autocast, TF32 and HF32 off, and back to what they were."""
    owner, name, full = _products(device.type)
    before = getattr(owner, name, full[0])
    reduced = before not in full
    try:
        if reduced:
            setattr(owner, name, full[0])
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if reduced:
            setattr(owner, name, before)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the host, those of one device in a single transfer, and wait for it."""
    return start_copy(tensors)()


def start_copy(tensors: Mapping[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Copy tensors to the host, those of one device in a single transfer.

    The transfer goes into pinned memory and runs beside the training, where the device can do so.

    Returns:
        What waits until they are there and returns them; any thread may call it.
    """
    waits = []
    for device in {tensor.device: None for tensor in tensors.values()}:
        own = {name: tensor for name, tensor in tensors.items() if tensor.device == device}
        waits.append(_start_copy(device, own))

    def wait() -> dict[str, Tensor]:
        arrived = {name: tensor for waiting in waits for name, tensor in waiting().items()}
        return {name: arrived[name] for name in tensors}

    return wait


def _start_copy(
    device: torch.device, tensors: Mapping[str, Tensor]
) -> Callable[[], dict[str, Tensor]]:
    if device.type == "cpu":
        return lambda: dict(tensors)
    parts, layout, end = [], {}, 0
    for name, tensor in tensors.items():
        data = tensor.contiguous().reshape(-1).view(torch.uint8)
        padding = -len(data) % _ALIGNED_BYTES
        parts += [data, data.new_zeros(padding)]
        layout[name] = end, len(data), tensor.dtype, tensor.shape
        end += len(data) + padding
    packed = torch.cat(parts)
    module = torch.get_device_module(device)
    try:
        host = torch.empty(end, dtype=torch.uint8, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        arrived = module.current_stream(device).record_event()
    except (RuntimeError, AttributeError):  # the device pins no memory, or none is left
        host, arrived = packed.cpu(), None

    def wait() -> dict[str, Tensor]:
        if arrived is not None:
            arrived.synchronize()
        return {
            name: host[start : start + size].view(dtype).reshape(shape)
            for name, (start, size, dtype, shape) in layout.items()
        }

    return wait


@functools.cache
def _products(kind: str) -> tuple[Any, str, tuple[Any, ...]]:
    """Return what says how a kind of device multiplies float32, its name, and its full settings.

    torch 2.9 has a setting for each device; before, one function sets that of them all. Reading
    that function's value fails where a training uses the new settings.
    """
    if kind == "cuda":
        owner: Any = torch.backends.cuda.matmul
    elif kind == "cpu":
        owner = getattr(torch.backends.mkldnn, "matmul", None)
    else:
        owner = getattr(torch.get_device_module(kind), "matmul", None)
        return owner, "allow_hf32", (False,)
    if hasattr(owner, "fp32_precision"):
        return owner, "fp32_precision", ("ieee", "none")
    return _Global, "precision", ("highest",)


class _GlobalPrecision:
    """torch's older setting, as an attribute."""

    @property
    def precision(self) -> str:
        return torch.get_float32_matmul_precision()

    @precision.setter
    def precision(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


_Global = _GlobalPrecision()
