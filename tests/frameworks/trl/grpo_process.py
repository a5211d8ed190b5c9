"""Runs of `grpo_run.py` in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT = Path(__file__).with_name("grpo_run.py")
EVERYTHING = "rollouts,inputs,log_probs,grad_norms,config,metrics,rng,sketches,weights"


def run(prefix: Sequence[str], model: Path, out: Path) -> None:
    """Train; what is logged lands in ``out``."""
    done = subprocess.run(
        [*prefix, sys.executable, str(SCRIPT), str(model), str(out)],
        env={**os.environ, "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def captured_run(model: Path, folder: Path) -> Path:
    """Train under capture, sketches and weights too, and return the run's folder."""
    align = str(Path(sys.executable).parent / "align")
    prefix = [align, "capture", "-o", str(folder / "run"), "--what", EVERYTHING, "--"]
    run(prefix, model, folder / "run.json")
    return folder / "run"
