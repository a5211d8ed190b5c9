"""Whole runs: bitwise repeatable, exactly resumable, recognised, and the same however packed."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the stack needs torch")
pytest.importorskip("transformers", reason="the stack needs transformers")

import torch
from safetensors.torch import load_file
from torch import nn

from align.cli.report import compare_runs
from align.core.verdict import VerdictStatus
from align.stack.pipeline import Model, Pipeline
from align.stack.run_folder import UNREAD
from align.stack.train import train
from dumps.capture.plan import VARIABLE, CapturePlan, What, write_plan
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.stack.tiny_run import TINY, contents, tiny

_SIX_STEPS = ("trainer.total_training_steps=6", "trainer.save_freq=2")


def _metrics(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["data"] for line in lines]


def same(name: str, one: Path, other: Path) -> bool:
    """Tell whether a file of two runs is equal bit by bit, L2 norms of sketches aside.

    These are dot products, whose order of summing depends on where a tensor lies in memory; tensors
    read from a checkpoint lie elsewhere.
    """
    first, second = one / name, other / name
    if not name.startswith("sketches/"):
        return first.read_bytes() == second.read_bytes()
    a, b = load_file(first), load_file(second)
    l2 = torch.allclose(a["moments"][:, 0], b["moments"][:, 0], rtol=1e-6, equal_nan=True)
    a["moments"][:, 0] = b["moments"][:, 0] = 0
    return l2 and a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_two_runs_with_one_seed_are_bitwise_equal_and_another_seed_is_not(tmp_path: Path) -> None:
    for name, seed in (("first", 42), ("second", 42), ("other", 43)):
        train(tiny(f"data.seed={seed}"), tmp_path / name)
    first = contents(tmp_path / "first")
    assert first == contents(tmp_path / "second")
    assert first["order.jsonl"] != contents(tmp_path / "other")["order.jsonl"]
    assert {"rollout/3.jsonl", "trainer_inputs/3.safetensors"} <= first.keys()


def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    train(tiny(*_SIX_STEPS), tmp_path / "whole")
    killed = tmp_path / "killed"
    program = "from align.cli.main import main; main()"
    command = [sys.executable, "-c", program, "train", *TINY, *_SIX_STEPS, "-o", str(killed)]
    process = subprocess.Popen([*command, "trainer.total_training_steps=1000000"])
    deadline = time.monotonic() + 60
    while not (killed / "rollout" / "5.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for step in range(5, 1000):  # the checkpoints of later steps, as if the kill had been exact
        for path in (killed / "checkpoints").glob(f"global_step_{step}"):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    with (killed / "metrics.jsonl").open("a", encoding="utf-8") as lines:
        lines.write('{"step": 5, "da')  # a line cut by the kill
    config = tiny(*_SIX_STEPS)
    assert (killed / "checkpoints" / "global_step_4").is_dir()
    train(config, killed, resume=True)
    resumed, whole = contents(killed), contents(tmp_path / "whole")
    described = {".hydra/config.yaml", ".hydra/overrides.yaml", "console.log"}  # of 1000000 steps
    assert resumed.keys() == whole.keys()
    assert [
        name
        for name in whole
        if not same(name, killed, tmp_path / "whole") and name not in described
    ] == []


def test_a_run_that_stops_in_mid_step_resumes_bit_for_bit(tmp_path: Path) -> None:
    config = tiny(*_SIX_STEPS, "stack.algorithm=ppo", "actor_rollout_ref.actor.ppo_epochs=2")
    train(config, tmp_path / "whole")

    class Stop(Exception):
        pass

    calls = 0
    real = Pipeline()

    def clip_gradients(model: nn.Module, max_norm: float) -> float:
        nonlocal calls
        calls += 1
        if calls == 10:  # the second update of step 5
            raise Stop
        return real.clip_gradients(model, max_norm)

    with pytest.raises(Stop):
        train(config, tmp_path / "cut", replace(real, clip_gradients=clip_gradients))
    train(config, tmp_path / "cut", resume=True)
    names = contents(tmp_path / "whole").keys()
    assert contents(tmp_path / "cut").keys() == names
    assert [name for name in names if not same(name, tmp_path / "cut", tmp_path / "whole")] == []


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "dapo", "dpo"])
def test_every_algorithm_trains_three_steps_with_finite_metrics(
    algorithm: str, tmp_path: Path
) -> None:
    config = tiny(f"stack.algorithm={algorithm}", "actor_rollout_ref.rollout.n=4")
    train(config, tmp_path)
    rows = _metrics(tmp_path)
    assert len(rows) == 3
    for row in rows:
        assert all(math.isfinite(value) for value in row.values()), row
        assert {"actor/lr", "critic/score/mean", "response_length/mean"} <= row.keys()
    # a step whose responses all score alike makes no pair, and so no loss
    assert any(row.get("actor/grad_norm", 0.0) > 0 for row in rows)


@pytest.mark.parametrize("profile", ["float64", "bfloat16"])
def test_a_numerics_profile_trains_and_the_configuration_states_its_dtype(
    profile: str, tmp_path: Path
) -> None:
    config = tiny(f"stack.numerics.profile={profile}", "stack.algorithm=ppo")
    train(config, tmp_path)
    assert config.actor.fsdp_config.dtype == profile
    inputs = load_file(tmp_path / "trainer_inputs" / "3.safetensors")
    expected = torch.float64 if profile == "float64" else torch.float32
    assert inputs["old_log_probs"].dtype == inputs["advantages"].dtype == expected


def test_packed_and_padded_paths_give_the_same_losses_and_gradients(tmp_path: Path) -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    for packed in ("true", "false"):
        gradients: list[torch.Tensor] = []
        config = tiny(
            f"actor_rollout_ref.model.use_remove_padding={packed}",
            "trainer.total_training_steps=1",
        )
        train(config, tmp_path / packed, _keeping_gradients(gradients))
        seen[packed] = gradients
    for name, value in _metrics(tmp_path / "true")[0].items():
        assert _metrics(tmp_path / "false")[0][name] == pytest.approx(value, abs=1e-5), name
    for a, b in zip(seen["true"], seen["false"], strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def _keeping_gradients(kept: list[torch.Tensor]) -> Pipeline:
    real = Pipeline()

    def clip_gradients(model: nn.Module, max_norm: float) -> float:
        kept.extend(p.grad.clone() for p in model.parameters() if p.grad is not None)
        return real.clip_gradients(model, max_norm)

    return replace(real, clip_gradients=clip_gradients)


def test_micro_batches_of_any_size_add_up_to_the_same_gradient(tmp_path: Path) -> None:
    seen: list[list[torch.Tensor]] = []
    for size in (8, 2):
        gradients: list[torch.Tensor] = []
        key = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
        config = tiny(f"{key}={size}", "trainer.total_training_steps=1")
        train(config, tmp_path / str(size), _keeping_gradients(gradients))
        seen.append(gradients)
    for a, b in zip(*seen, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_run_folder_is_recognised_and_two_equal_runs_are_aligned(tmp_path: Path) -> None:
    for name in ("reference", "candidate"):
        train(tiny("trainer.total_training_steps=4"), tmp_path / name)
    run = discover([tmp_path / "reference"])
    strangers = [path.path.resolve() for path in run.unknown]
    root = (tmp_path / "reference").resolve()
    named = [str(path.relative_to(root)) for path in strangers]
    assert [name for name in named if not any(fnmatch(name, p) for p in UNREAD)] == []
    assert run.manifest.framework == "stack"
    formats = {artifact.format for artifact in run.artifacts}
    expected = {"verl_console", "filelogger_jsonl", "verl_rollout", "printed_config"}
    assert expected | {"yaml_config", "hf_config", "hydra_overrides"} <= formats
    report = compare_runs(tmp_path / "reference", tmp_path / "candidate")
    assert report.verdict.status is VerdictStatus.ALIGNED
    assert [f.id for rung in report.rungs for f in rung.findings if f.severity == "error"] == []


def test_rollouts_hold_what_verl_leaves_out(tmp_path: Path) -> None:
    config = tiny()
    train(config, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rollout" / "2.jsonl").open(encoding="utf-8")]
    inputs = load_file(tmp_path / "trainer_inputs" / "2.safetensors")
    order = [json.loads(line) for line in (tmp_path / "order.jsonl").open(encoding="utf-8")]
    assert order[1]["step"] == 2
    assert [row["index"] for row in rows[::2]] == order[1]["rows"]
    for number, row in enumerate(rows):
        length = len(row["response_ids"])
        assert inputs["responses"][number, :length].tolist() == row["response_ids"]
        assert inputs["response_mask"][number].tolist() == [1] * length + [0] * (6 - length)
        prompt = inputs["input_ids"][number, : config.data.max_prompt_length]
        assert prompt[-len(row["prompt_ids"]) :].tolist() == row["prompt_ids"]
        assert row["score"] == pytest.approx(float(inputs["token_level_rewards"][number].sum()))
        applied = [v for k, v in row.items() if k.startswith("score/") and v is not None]
        assert applied and sum(applied) == pytest.approx(row["score"])
    other = "score/add" if rows[0]["task"] == "compare" else "score/compare"
    assert rows[0][other] is None


def test_the_rollout_engine_samples_from_the_weights_just_trained(tmp_path: Path) -> None:
    differences: list[float] = []
    real = Pipeline()

    def sync_weights(trainer: Model, engine: Model) -> None:
        real.sync_weights(trainer, engine)
        pairs = zip(trainer.parameters(), engine.parameters(), strict=True)
        differences.append(max(float((a - b).detach().abs().max()) for a, b in pairs))

    train(tiny(), tmp_path / "synced", replace(real, sync_weights=sync_weights))
    assert differences == [0.0, 0.0, 0.0]
    nothing: Callable[[object, object], None] = lambda trainer, engine: None  # noqa: E731
    train(tiny(), tmp_path / "stale", replace(real, sync_weights=nothing))
    synced, stale = (_metrics(tmp_path / name) for name in ("synced", "stale"))
    name = "training/rollout_probs_diff_mean"
    assert synced[2][name] < 1e-6 < 1e-3 < stale[2][name]


def test_the_warm_up_is_the_same_whatever_the_rl_part_is(tmp_path: Path) -> None:
    from align.stack.warmup import warm_weights

    plain = warm_weights(tiny(), tmp_path)
    changed = tiny(
        "actor_rollout_ref.model.override_config.rms_norm_eps=1e-3",
        "data.seed=7",
        "stack.numerics.profile=bfloat16",
        "actor_rollout_ref.actor.clip_ratio=0.1",
    )
    assert len(list(tmp_path.iterdir())) == 1
    other = warm_weights(changed, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    warm_weights(tiny("stack.seed=1"), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_bad_settings_are_refused_before_the_folder_is_touched(tmp_path: Path) -> None:
    program = "from align.cli.main import main; main()"
    command = [sys.executable, "-c", program, "train", "data.train_batchsize=4"]
    done = subprocess.run([*command, "-o", str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 2
    assert "data.train_batchsize" in done.stderr and "data.train_batch_size" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_whose_embeddings_a_capture_moves_says_so_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("trainer.total_training_steps=1", "stack.warmup.steps=2")
    for name, perturbs in (("clean", False), ("moved", True)):
        plan = CapturePlan(tmp_path / f"{name}-plan", (What.SKETCHES,), perturbs=perturbs)
        monkeypatch.setenv(VARIABLE, str(write_plan(plan)))
        train(config, tmp_path / name)
    assert RunData(discover([tmp_path / "clean"])).problems == []
    (problem,) = RunData(discover([tmp_path / "moved"])).problems
    assert "moved by a rounding unit" in problem.problem
