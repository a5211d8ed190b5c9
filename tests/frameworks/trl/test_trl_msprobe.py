"""`align capture --backend msprobe` on the real TRL and the real msprobe, where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed")
pytest.importorskip("msprobe", reason="msprobe is not installed (pip install mindstudio-probe)")

from dumps.store.verify import verify

SCRIPT = Path(__file__).with_name("grpo_run.py")
BIN = Path(sys.executable).parent
LAYERS = 2


def test_each_step_has_a_dump_of_the_update_in_a_folder_of_its_number(
    tmp_path: Path, reference_runs: Path
) -> None:
    run, model = tmp_path / "run", reference_runs / "tiny_model_tokenizer_data" / "model"
    done = subprocess.run(
        [
            *(str(BIN / "align"), "capture", "--backend", "msprobe", "-o", str(run), "--"),
            *(sys.executable, str(SCRIPT), str(model), str(tmp_path / "out.json")),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (run / "capture.log").exists()
    assert verify(run).is_whole
    for step in (1, 2):
        (dump,) = (run / f"msprobe/step{step}").glob("*/dump.json")
        keys = json.loads(dump.read_text())["data"].keys()
        for layer in range(LAYERS):
            attention = f"Module.model.layers.{layer}.self_attn.Qwen2Attention"
            # once, and again for gradient checkpointing; what the step generated is not there
            forwards = [key for key in keys if key.startswith(f"{attention}.forward.")]
            assert forwards == [f"{attention}.forward.{number}" for number in (0, 1)]
            assert f"{attention}.backward.0" in keys
