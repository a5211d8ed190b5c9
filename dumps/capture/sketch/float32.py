"""Products in real float32, whatever the training has switched on around a capture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Switch autograd, autocast and TF32 (HF32 on an NPU) off, and back to what they were."""
    precision = torch.get_float32_matmul_precision()
    npu = getattr(getattr(torch, "npu", None), "matmul", None)
    hf32 = getattr(npu, "allow_hf32", None)
    try:
        if precision != "highest":
            torch.set_float32_matmul_precision("highest")
        if hf32:
            npu.allow_hf32 = False  # type: ignore[union-attr]
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        if precision != "highest":
            torch.set_float32_matmul_precision(precision)
        if hf32:
            npu.allow_hf32 = hf32  # type: ignore[union-attr]
