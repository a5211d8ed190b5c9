"""Sketches of the real TRL: those of the plain model, and a changed layer is named by them.

The clean run is that of `test_trl_capture`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed")

import torch
from transformers import AutoModelForCausalLM

from align.core.rung import RungStatus
from align.layers import backward_rung, forward_rung, update_rung
from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_parameters
from dumps.readers.trainer_inputs import read as read_inputs
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.frameworks.trl.grpo_process import captured_run

FLOAT32 = 2e-6  # what sketches of one tensor computed in two ways may differ by


def data(run: Path) -> RunData:
    return RunData(discover([run]))


@pytest.fixture(scope="module")
def model(reference_runs: Path) -> Path:
    return reference_runs / "tiny_model_tokenizer_data" / "model"


@pytest.fixture(scope="module")
def plain(grpo_runs: Any, model: Path, tmp_path_factory: pytest.TempPathFactory) -> CapturedStep:
    """Sketch the model of transformers, on the rows that TRL trained on in its first step."""
    folder = tmp_path_factory.mktemp("plain")
    own = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    batch = read_inputs(grpo_runs[2] / "trainer_inputs/rank=0/000001.safetensors", lambda _: None)
    inputs = {
        name: torch.from_numpy(np.asarray(batch.tensor(name)))
        for name in ("input_ids", "attention_mask")
    }
    log = FailureLog(folder, "test")
    with sketched_step(own, folder, 1, log) as recorder, torch.no_grad():
        record_parameters(recorder, own, Phase.PARAMETER)
        own(**inputs, use_cache=False)
    return captured_steps(data(folder))[1]


def test_weights_and_activations_are_those_of_the_plain_model(
    grpo_runs: Any, plain: CapturedStep
) -> None:
    step = captured_steps(data(grpo_runs[2]))[1]
    for phase in (Phase.PARAMETER, Phase.FORWARD):
        # TRL computes logits of the completion alone
        own, theirs = (
            {a: r for a, r in s.of(phase).items() if a[0] != "lm_head"} for s in (step, plain)
        )
        assert own.keys() == theirs.keys() and len(own) > 10
        for address, record in own.items():
            assert record.digest == theirs[address].digest, address
            assert difference(theirs[address], record).relative <= FLOAT32, address


def test_sketched_gradients_have_the_norm_that_trl_logs(grpo_runs: Any) -> None:
    for number in (1, 2):
        gradients = captured_steps(data(grpo_runs[2]))[number].of(Phase.PARAMETER_GRADIENT)
        norm = math.sqrt(sum(record.l2**2 for record in gradients.values()))
        logged = grpo_runs[0]["rows"][number - 1]["grad_norm"]
        assert norm == pytest.approx(logged, rel=1e-5)


def test_what_a_step_adds_is_the_difference_of_the_weights_around_it(grpo_runs: Any) -> None:
    steps = captured_steps(data(grpo_runs[2]))
    before, added, after = steps[1].of(Phase.PARAMETER), steps[1].of(Phase.UPDATE), steps[2]
    moved = after.of(Phase.PARAMETER)
    assert before.keys() == added.keys() == moved.keys()
    for address, record in added.items():
        own, earlier = moved[address], before[address]
        # of float32 sums, whose rounding is theirs and not the small difference's
        rounding = 1e-6 * max(own.l2, earlier.l2)
        assert record.sketch == pytest.approx(own.sketch - earlier.sketch, abs=rounding)
        assert record.l2 > 100 * rounding


@pytest.fixture(scope="module")
def again(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured_run(model, tmp_path_factory.mktemp("again"))


@pytest.fixture(scope="module")
def changed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with another epsilon, tokens and weights being the same in the first step."""
    folder = tmp_path_factory.mktemp("changed")
    copy = Path(shutil.copytree(model, folder / "model"))
    config = json.loads((copy / "config.json").read_text())
    config["rms_norm_eps"] = 1e-4
    (copy / "config.json").write_text(json.dumps(config))
    return captured_run(copy, folder)


def statuses(one: Path, other: Path) -> Mapping[str, Any]:
    both = data(one), data(other)
    return {
        rung.__name__.rpartition(".")[2]: rung.compare(*both)
        for rung in (forward_rung, backward_rung, update_rung)
    }


def test_a_repeated_run_has_no_finding(grpo_runs: Any, again: Path) -> None:
    for name, result in statuses(grpo_runs[2], again).items():
        assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), (name, result.summary)


def test_a_changed_epsilon_is_named_at_the_first_norm(grpo_runs: Any, changed: Path) -> None:
    (finding,) = statuses(grpo_runs[2], changed)["forward_rung"].findings
    assert finding.id == "forward.first_divergence"
    assert "model.layers.0.input_layernorm" in finding.title.en
