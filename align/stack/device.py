"""The device a run computes on, and how it is made deterministic."""

from __future__ import annotations

import os

import torch

from align.core.errors import ConfigError
from align.core.optional import require


def find_device(name: str) -> torch.device:
    """Return the device of ``trainer.device``: cpu, cuda or npu; the local rank's own one.

    Raises:
        ConfigError: This machine has none of that kind.
        MissingPackageError: torch_npu is needed and not installed.
    """
    if name == "cpu":
        return torch.device("cpu")
    if name == "npu":
        require("torch_npu", extra="npu")  # registers torch.npu
    module = torch.get_device_module(name)
    if not module.is_available():
        raise ConfigError(
            where="configuration",
            key="trainer.device",
            problem=f"no {name} device is available here",
            fix="use trainer.device=cpu, or run where there is one",
        )
    module.set_device(local_rank())
    return torch.device(name, local_rank())


def local_rank() -> int:
    """Return torchrun's local rank, 0 without it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def make_deterministic(num_threads: int) -> None:
    """Make equal runs bitwise equal: fixed threads, deterministic kernels where there are any."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True, warn_only=True)


def seed_step(seed: int, step: int) -> None:
    """Seed what draws from the global generator (dropout) in one step.

    Every step starts from its own seed, so that a resumed run needs no saved random state.
    """
    torch.manual_seed((seed * 1_000_003 + step) % (1 << 63))
