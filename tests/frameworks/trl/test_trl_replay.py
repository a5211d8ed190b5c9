"""`align replay` into the real TRL: what a captured run trained on, trained on again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed")

SCRIPT = Path(__file__).with_name("grpo_run.py")
ALIGN = str(Path(sys.executable).with_name("align"))
TIMEOUT_S = 300


def run(command: list[str], model: Path, out: Path) -> tuple[int, str]:
    done = subprocess.run(
        [ALIGN, *command, "--", sys.executable, str(SCRIPT), str(model), str(out)],
        env={**os.environ, "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def model(reference_runs: Path) -> Path:
    return reference_runs / "tiny_model_tokenizer_data" / "model"


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("trl")
    code, said = run(["capture", "-o", str(folder / "run")], model, folder / "out.json")
    assert code == 0, said[-3000:]
    return folder


def test_the_first_step_is_bitwise_the_same_without_a_token_sampled(
    captured: Path, model: Path
) -> None:
    """TRL shuffles a generation by the generator that samples, so later steps add up otherwise."""
    recorded, again = captured / "run", captured / "again"
    command = ["replay", "--rollouts", str(recorded), "-o", str(again)]
    code, said = run(command, model, captured / "again.json")
    assert code == 0, said[-3000:]
    first, second = (json.loads((captured / f"{n}.json").read_text()) for n in ("out", "again"))
    assert first["rows"][0]["grad_norm"] > 0
    assert second["rows"][0] == first["rows"][0]
    for name in ("reward", "completions/mean_length", "num_tokens"):
        assert second["rows"][1][name] == first["rows"][1][name]
    assert second["rows"][1]["grad_norm"] == pytest.approx(first["rows"][1]["grad_norm"], rel=1e-4)
    assert second["draw"] != first["draw"]  # the generator did not move for sampling
    proof = json.loads((again / "align-run.json").read_text())["replay"]
    assert proof["holds"] and proof["identical"] == proof["rows"] > 0
    assert proof["recorded_sha256"] == proof["consumed_sha256"]


def test_a_step_that_is_not_recorded_stops_the_run(captured: Path, model: Path) -> None:
    alone = captured / "alone"
    alone.mkdir()
    (first,) = (captured / "run").rglob("rollout/**/step=000001.parquet")
    (alone / "step=000001.parquet").write_bytes(first.read_bytes())
    command = ["replay", "--rollouts", str(alone), "-o", str(captured / "refused")]
    code, said = run(command, model, captured / "refused.json")
    assert code == 2
    assert "steps of this run are not recorded: 2" in said
    assert not (captured / "refused.json").exists()
