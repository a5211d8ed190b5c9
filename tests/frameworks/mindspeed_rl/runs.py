"""Runs of the real MindSpeed-RL's worker by `real_worker`, captured or replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = os.environ.get("MINDSPEED_RL_SRC")
BIN = Path(sys.executable).parent
START = Path(__file__).resolve().parents[1] / "start.py"
TIMEOUT_S = 400

SKETCHES = (
    "capture",
    "--what",
    "rollouts,inputs,log_probs,grad_norms,config,metrics,rng,sketches",
)
"""All that is recorded by default, and sketches."""


@dataclass(frozen=True)
class Ran:
    """One run: what a capture wrote, and what each rank says it did, step by step."""

    capture: Path
    ranks: list[list[dict[str, Any]]]


def run(folder: Path, name: str, world: int, *prefix: str, **environment: str) -> Ran:
    """Train two steps with one process a tensor-parallel rank.

    Args:
        prefix: command of `align` with its options, that the run is under; none for none.
    """
    import torch

    out = folder / name
    under = [*prefix, "-o", str(folder / f"{name}-run")] if prefix else []
    done = start(out, world, under, environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    ranks = [torch.load(f"{out}.{rank}", weights_only=False) for rank in range(world)]
    return Ran(folder / f"{name}-run", ranks)


def start(
    out: Path, world: int, prefix: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the ranks of `real_worker`."""
    return launch("tests.frameworks.mindspeed_rl.real_worker", out, world, prefix, environment)


def launch(
    worker: str, out: Path, world: int, prefix: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the ranks of a module under torchrun, on a port of their own."""
    command = [
        *((str(BIN / "align"), *prefix, "--") if prefix else ()),
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nproc-per-node", str(world), "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", "127.0.0.1:0", str(START)),
        *(worker, str(out)),
    ]
    return subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
