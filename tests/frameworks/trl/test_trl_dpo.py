"""`align capture` on TRL's DPOTrainer: a tiny model, three steps of four pairs on CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl.trainer.dpo_trainer", reason="TRL is not installed")

import torch

from align.core.rung import RungStatus
from align.ladder import compare_losses
from align.layers import backward_rung, forward_rung, update_rung
from align.layers.captured import captured_steps
from align.referee.preference_loss import (
    LOSSES,
    SMOOTHED_SIGMOID,
    PreferenceObjective,
    recompute_preference,
)
from align.referee.preference_passes import PreferencePass, Sums
from dumps.readers import captured_step
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from dumps.store.verify import verify
from tests.frameworks.trl.grpo_process import EVERYTHING

START = Path(__file__).parents[1] / "start.py"
STEPS = (1, 2, 3)
FLOAT32 = 1e-6  # of losses and norms near 1


def train(folder: Path, model: Path, *, captured: bool = True, **settings: Any) -> Path:
    """Train in a process of its own; what is logged lands in run.json, a capture beside it."""
    align = str(Path(sys.executable).parent / "align")
    prefix = [align, "capture", "-o", str(folder / "run"), "--what", EVERYTHING, "--"]
    script = [sys.executable, str(START), "tests.frameworks.trl.dpo_run"]
    done = subprocess.run(
        [
            *(prefix if captured else []),
            *(*script, str(model), str(folder / "run.json"), json.dumps(settings)),
        ],
        env={**os.environ, "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run"


def logged(run: Path) -> Any:
    return json.loads(run.with_suffix(".json").read_text())


def data(run: Path) -> RunData:
    return RunData(discover([run]))


@pytest.fixture(scope="module")
def model(reference_runs: Path) -> Path:
    return reference_runs / "tiny_model_tokenizer_data" / "model"


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("plain"), model, captured=False)


@pytest.fixture(scope="module")
def captured(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("captured"), model)


@pytest.fixture(scope="module")
def accumulated(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train again, two micro-batches a step."""
    return train(
        tmp_path_factory.mktemp("accumulated"),
        model,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
    )


@pytest.fixture(scope="module")
def negated(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("negated"), model, plant="margin_negated")


def test_losses_gradients_weights_and_draws_are_the_same_with_a_capture(
    plain: Path, captured: Path
) -> None:
    assert logged(captured) == logged(plain)
    assert [row["step"] for row in logged(plain)["rows"][:3]] == list(STEPS)


def test_every_step_is_whole_and_nothing_failed(captured: Path) -> None:
    assert not (captured / "capture.log").exists()
    assert verify(captured).whole_steps == STEPS
    read = data(captured)
    assert (read.framework, read.framework_version, read.run.unknown) == ("trl", "1.16.0", ())


def test_gradient_norms_of_all_parameters_add_up_to_the_one_trl_logs(captured: Path) -> None:
    for step in STEPS:
        part = captured_step.read(captured / f"steps/{step:06d}/preference-0.safetensors")
        sketched = captured_steps(data(captured))[step].of(Phase.PARAMETER_GRADIENT)
        norm = logged(captured)["rows"][step - 1]["grad_norm"]
        assert np.sqrt(sum(part.gradient_squares(0).values())) == pytest.approx(norm, rel=1e-5)
        assert np.sqrt(sum(r.l2**2 for r in sketched.values())) == pytest.approx(norm, rel=1e-5)
        assert set(part.rng) >= {"torch", "numpy", "python"}


def test_the_loss_follows_from_the_log_probs_that_are_kept(captured: Path) -> None:
    for step in STEPS:
        part = captured_step.read(captured / f"steps/{step:06d}/preference-0.safetensors")
        kept = {n.removeprefix("update.0.micro.0."): t for n, t in part.tensors.items()}
        policy, reference = (
            (kept[name].astype(np.float64) * kept["response_mask"][:, 1:].astype(np.float64)).sum(
                axis=1
            )
            for name in ("log_probs", "ref_log_prob")
        )
        chosen, rejected = np.split(policy - reference, 2)
        loss = np.log1p(np.exp(-0.1 * (chosen - rejected))).mean()
        row = logged(captured)["rows"][step - 1]
        assert float(kept["preference_loss"]) == pytest.approx(loss, abs=FLOAT32)
        assert row["loss"] == pytest.approx(loss, abs=FLOAT32)
        assert row["logps/chosen"] == pytest.approx(policy[:4].mean(), rel=FLOAT32)
        assert row["num_tokens"] >= kept["attention_mask"].sum() > kept["response_mask"].sum()


def test_accumulated_micro_batches_are_all_kept_and_no_difference_is_named(
    captured: Path, accumulated: Path
) -> None:
    part = captured_step.read(accumulated / "steps/000002/preference-0.safetensors")
    losses = [float(part.tensors[f"update.0.micro.{m}.preference_loss"]) for m in range(2)]
    assert np.mean(losses) == pytest.approx(logged(captured)["rows"][1]["loss"], abs=1e-4)
    both = data(captured), data(accumulated)
    for result in (
        compare_losses(*both),
        forward_rung.compare(*both),
        backward_rung.compare(*both),
    ):
        assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary
    assert "(3 and 6 micro-batches" in compare_losses(*both).summary.en
    updates = update_rung.compare(*both)
    assert updates is not None and updates.findings == ()


def test_a_negated_margin_is_named(captured: Path, negated: Path) -> None:
    assert logged(negated)["rows"][1]["loss"] != logged(captured)["rows"][1]["loss"]
    (finding,) = compare_losses(data(captured), data(negated)).findings
    assert finding.id == "loss.preference_exchanged"
    assert "the candidate prefers the rejected response" in finding.title.en
    (mirrored,) = compare_losses(data(negated), data(captured)).findings
    assert "the reference prefers the rejected response" in mirrored.title.en


@pytest.mark.parametrize("loss_type", sorted(LOSSES.keys() - {SMOOTHED_SIGMOID}))
@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_every_loss_type_is_recomputed_as_trl_computes_it(loss_type: str, beta: float) -> None:
    from tests.frameworks.trl.trainers import dpo_loss

    draw = torch.Generator().manual_seed(3)
    policy, reference = (-2 * torch.rand(8, 7, generator=draw) for _ in range(2))
    mask = (torch.arange(7) < torch.tensor([[7], [3], [5], [1], [2], [7], [4], [6]])).long()
    theirs, _ = dpo_loss(policy, reference, mask, loss_type=loss_type, beta=beta, smoothing=0.1)
    sums = [
        Sums((own * mask).double().sum(1), 2**-24 * 20 * (own * mask).abs().double().sum(1))
        for own in (policy, reference)
    ]
    lengths, loss = mask.sum(1).double(), float(theirs)
    given = PreferencePass(1, 0, 0, "", (), sums[0], sums[1], lengths, loss, 2**-24)
    ours = recompute_preference(given, PreferenceObjective(((loss_type, 1.0),), beta, 0.1))
    assert ours is not None and ours.is_met_by(loss)
    assert ours.rounding < 1e-4 * max(1.0, abs(loss))
