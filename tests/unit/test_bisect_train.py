"""Bisection of real trainings: which of several settings moved the metric."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ALIGN = [sys.executable, "-c", "from align.cli.main import main; main()"]
SMALL = (
    "trainer.total_training_steps=2",
    "stack.data.num_rows=16",
    "stack.warmup.steps=10",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
)
OTHER = (
    "actor_rollout_ref.actor.optim.weight_decay=0.1",
    "actor_rollout_ref.actor.kl_loss_coef=0.01",
    "actor_rollout_ref.rollout.temperature=0.3",
    "actor_rollout_ref.actor.entropy_coeff=0.0001",
)


def test_the_setting_that_moves_the_first_steps_entropy_is_found_by_training(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    align(tmp_path, 0, "train", *SMALL, "-o", "ref")
    align(tmp_path, 0, "train", *SMALL, *OTHER, "-o", "cand")
    verdict = {"metric": "actor/entropy", "above": 0.2, "reference": "ref", "steps": 2}
    plan = {
        "command": f"{sys.executable} -c 'from align.cli.main import main; main()' train "
        f"{' '.join(SMALL)} {{overrides}} -o {{out}}",
        "from": {"reference": "ref", "candidate": "cand"},
        "verdict": verdict,
    }
    (tmp_path / "plan.yaml").write_text(json.dumps(plan))
    found = json.loads(align(tmp_path, 1, "bisect", "plan.yaml", "--json"))
    ((knob,),) = [found_set["knobs"] for found_set in found["sets"]]
    assert knob["name"] == "actor_rollout_ref.rollout.temperature"
    assert (knob["reference"], knob["candidate"]) == (1.0, 0.3)
    assert found["complete"]
    assert found["num_knobs"] == 4


def align(folder: Path, code: int, *words: str) -> str:
    done = subprocess.run(
        [*ALIGN, *words], cwd=folder, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == code, done.stderr
    return done.stdout
