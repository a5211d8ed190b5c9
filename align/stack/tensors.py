"""Named tensors in a safetensors file, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, each with memory of its own; equal tensors give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    owned = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    save_file(owned, part)
    os.replace(part, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a file onto the CPU."""
    return dict(load_file(path))
