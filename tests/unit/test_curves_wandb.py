"""A folder that the real wandb package wrote offline, as a source of curves and of a watch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from align.cli.main import cli
from align.watch.follow import Follower
from align.watch.observed import Observed

STEPS = 40
WRITE = """
import json, os, sys
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
import wandb
run = wandb.init(project="p", dir=sys.argv[1], settings=wandb.Settings(console="off"))
for step, value in enumerate(json.loads(sys.argv[2]), 1):
    run.log({"critic/score/mean": value, "actor/grad_norm": 0.5}, step=step)
run.finish()
"""


def write(folder: Path, values: np.ndarray) -> None:
    pytest.importorskip("wandb")
    folder.mkdir()
    arguments = [str(folder), str(values.tolist())]
    done = subprocess.run([sys.executable, "-c", WRITE, *arguments], capture_output=True)
    if done.returncode:
        pytest.skip(f"wandb cannot write here: {done.stderr.decode()[-200:]}")


def test_an_offline_wandb_run_is_compared_and_watched(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = 0.5 + 0.01 * rng.normal(size=STEPS)
    lower = 0.5 + 0.01 * rng.normal(size=STEPS) - 0.3 * (np.arange(STEPS) >= 33)
    write(tmp_path / "reference", values)
    write(tmp_path / "candidate", lower)
    seen = Observed()
    seen.add(Follower(tmp_path / "reference").poll())
    series = seen.log().get("critic/score/mean")
    assert series is not None
    assert series.steps.tolist() == list(range(1, STEPS + 1))
    assert series.values.tolist() == values.tolist()
    runs = [str(tmp_path / "reference"), str(tmp_path / "candidate")]
    text = CliRunner().invoke(cli, ["curves", "diff", *runs, "--all"]).stdout
    assert "run-" in text and ".wandb" in text and "critic/score/mean" in text
    assert CliRunner().invoke(cli, ["curves", "diff", runs[0], runs[0]]).exit_code == 0
    watched = CliRunner().invoke(cli, ["watch", "--reference", *runs, "--once"])
    assert watched.exit_code == 1
    assert "critic/score/mean has left the reference" in watched.stderr
