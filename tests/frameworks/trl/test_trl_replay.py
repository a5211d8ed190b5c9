"""`align replay` into the real TRL: what a captured run trained on, trained on again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("trl", reason="TRL is not installed")

from dumps.readers.row_hashes import brief_hashes, data_set_hash, question_hashes

SCRIPT = Path(__file__).with_name("grpo_run.py")
ALIGN = str(Path(sys.executable).with_name("align"))
TIMEOUT_S = 300


def run(command: list[str], model: Path, out: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [ALIGN, *command, "--", sys.executable, str(SCRIPT), str(model), str(out), *options],
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


def replay(captured: Path, model: Path, name: str, *options: str, script: tuple[str, ...] = ()):
    """Replay the captured run; return exit code, what was said, TRL's log, and the proof."""
    command = ["replay", "--rollouts", str(captured / "run"), "-o", str(captured / name), *options]
    code, said = run(command, model, captured / f"{name}.json", *script)
    logged = captured / f"{name}.json"
    rows = json.loads(logged.read_text())["rows"] if logged.exists() else []
    proof = json.loads((captured / name / "align-run.json").read_text())["replay"]
    return code, said, rows, proof


def rollouts(run: Path, step: int) -> list[tuple]:
    names = ("prompt_ids", "response_ids", "score", "finish_reason")
    rows = pq.read_table(run / f"rollout/rank=0/step={step:06d}.parquet").to_pylist()
    return [tuple(row[name] for name in names) for row in rows]


def test_an_order_is_set_where_the_data_would_come_otherwise(captured: Path, model: Path) -> None:
    order = ("--order", str(captured / "run"))
    code, said, _, proof = replay(captured, model, "ordered", *order, script=("8",))
    assert code == 0, said[-3000:]
    for step in (1, 2):
        assert rollouts(captured / "ordered", step) == rollouts(captured / "run", step)
    assert proof["holds"] and (proof["identical"], proof["out_of_order"]) == (8, 0)


def test_an_order_file_is_checked_against_trls_data_set(
    captured: Path, model: Path, tmp_path: Path
) -> None:
    questions = [f"What is {a} + {a + 1}?" for a in range(8)]
    other = order_file(tmp_path / "other.jsonl", questions[::-1], [[0, 1], [2, 3]])
    code, said, logged, _ = replay(captured, model, "misfit", "--order", str(other))
    assert code == 2 and not logged
    assert "made for another data set (rows): 8 rows there, 8 here, and row 0 is the first" in said


def order_file(path: Path, questions: list[str], steps: list[list[int]]) -> Path:
    hashes = question_hashes(questions, len(questions))
    header = {
        "kind": "row_order",
        "schema_version": 1,
        "data_set": "rows",
        "num_rows": len(questions),
        "data_set_hash": data_set_hash(hashes),
        "row_hashes": brief_hashes(hashes),
        "hashed": "text",
    }
    lines = [header, *({"step": i, "rows": rows} for i, rows in enumerate(steps, 1))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_recorded_rewards_are_trained_on_where_the_candidate_has_others(
    captured: Path, model: Path
) -> None:
    first = json.loads((captured / "out.json").read_text())["rows"][0]
    script = ("7", "other")
    taken = ("--rewards", "recorded")
    code, said, rows, proof = replay(captured, model, "taken", *taken, script=script)
    assert code == 0, said[-3000:]
    assert (proof["scores_differ"], proof["holds"]) == (0, True)
    for name in ("reward", "reward_std", "grad_norm", "loss"):
        assert rows[0][name] == first[name]
