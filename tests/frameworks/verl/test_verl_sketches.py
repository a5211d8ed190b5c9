"""Sketches of the real verl: they are those of the plain model, whatever verl wraps it in.

The runs are those of `test_verl_capture`, and one on two ranks whose rollout engine is never given
one of the weights, which `test_verl_replay` uses too.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("transfer_queue", reason="verl's V1 trainer needs TransferQueue")

import torch
import verl

from align.core.rung import Rung, RungStatus
from align.ladder import climb
from align.layers import backward_rung, forward_rung, weight_sync_rung
from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.failures import FailureLog
from dumps.capture.install import hook_points
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_parameters
from dumps.readers.trainer_inputs import read as read_inputs
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.frameworks.verl.runs import SKIPPED, STEPS, Pair, Ran, Runs

NEEDS = ("v1_captured", "v0_captured", "v1_two_captured")
FLOAT32 = 2e-6  # what sketches of one tensor computed in two ways may differ by


@pytest.fixture(params=["v1", "v0"])
def captured(runs: Runs, request: pytest.FixtureRequest) -> Ran:
    return runs.get(f"{request.param}_captured")


@pytest.fixture(scope="module")
def two_ranks(runs: Runs) -> Ran:
    """Give a run like that of `v1` on two ranks, whose engine is never given a weight."""
    return runs.get("v1_two_captured")


def data(run: Ran) -> RunData:
    return RunData(discover([run.capture]))


@pytest.fixture(scope="module")
def plain(v1: Pair, tmp_path_factory: pytest.TempPathFactory) -> CapturedStep:
    """Sketch the model of transformers, on the rows that verl trained on in its first step."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("plain")
    path = v1.captured.out.parent / "tiny" / "model"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    batch = read_inputs(v1.captured.capture / "trainer_inputs/000001.safetensors", lambda _: None)
    names = ("input_ids", "attention_mask", "position_ids")
    inputs = {name: torch.from_numpy(np.asarray(batch.tensor(name))) for name in names}
    with sketched_step(model, folder, 1, FailureLog(folder, "test")) as recorder, torch.no_grad():
        record_parameters(recorder, model, Phase.PARAMETER)
        model(**inputs, use_cache=False)
    return captured_steps(RunData(discover([folder])))[1]


def test_weights_and_activations_are_those_of_the_plain_model(
    captured: Ran, plain: CapturedStep
) -> None:
    step = captured_steps(data(captured))[1]
    for phase in (Phase.PARAMETER, Phase.FORWARD, Phase.INPUT):
        own = {a: r for a, r in step.of(phase).items() if a[0] != "position_ids"}
        theirs = {a: r for a, r in plain.of(phase).items() if a[0] != "position_ids"}
        assert own.keys() == theirs.keys() and own
        for address, record in own.items():
            assert record.digest == theirs[address].digest, address
            assert difference(theirs[address], record).relative <= FLOAT32, address


def test_sketched_gradients_have_the_norm_that_verl_logs(captured: Ran) -> None:
    for number in STEPS:
        gradients = captured_steps(data(captured))[number].of(Phase.PARAMETER_GRADIENT)
        norms = [
            math.sqrt(sum(r.l2**2 for (_, update), r in gradients.items() if update == each))
            for each in range(2)
        ]
        logged = captured.logged()[number]["actor/grad_norm"]
        assert np.mean(norms) == pytest.approx(logged, rel=1e-5)


def test_both_trainers_agree_in_layers_and_syncs(v1: Pair, v0: Pair) -> None:
    runs = data(v1.captured), data(v0.captured)
    for rung in (forward_rung, weight_sync_rung):
        result = rung.compare(*runs)
        assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary


def test_two_ranks_agree_with_one_in_layers_and_their_other_mini_batches_are_not_blamed(
    v1: Pair, two_ranks: Ran
) -> None:
    runs = data(v1.captured), data(two_ranks)
    layers, gradients = forward_rung.compare(*runs), backward_rung.compare(*runs)
    assert (layers.status, layers.findings) == (RungStatus.ALIGNED, ()), layers.summary
    assert (gradients.status, gradients.findings) == (RungStatus.MISSING, ())
    assert "other rows" in gradients.summary.en


def test_an_engine_that_is_never_given_a_weight_is_named(v1: Pair, two_ranks: Ran) -> None:
    results = {r.name: r for r in climb(data(v1.captured), data(two_ranks)).rungs}
    result = results[Rung.WEIGHT_SYNC]
    assert not (two_ranks.capture / "capture.log").exists()
    (finding,) = result.findings
    assert finding.id == "weight_sync.not_synced"
    assert "in the candidate: 1/" in finding.title.en
    assert SKIPPED in str(finding.evidence[0].text)


def test_the_hook_in_vllms_workers_has_the_signature_of_verls_source() -> None:
    """Read, not imported: it imports vLLM."""
    (point,) = [p for p in hook_points() if p.tap == "verl_engine:vllm_loaded"]
    owner, _, name = point.attribute.partition(".")
    path = Path(verl.__file__).parents[1] / f"{point.module.replace('.', '/')}.py"
    classes = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]
    (found,) = [n for n in classes if n.name == owner]
    (method,) = [n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == name]
    given = [argument.arg for argument in method.args.args]
    assert given[:3] == ["self", "peft_config", "base_sync_done"]
    assert "self.model_runner.model" in ast.unparse(found)


def test_sketches_of_a_whole_run_are_small(captured: Ran) -> None:
    sizes = [path.stat().st_size for path in (captured.capture / "sketches").rglob("*.safetensors")]
    assert sum(sizes) / len(STEPS) < 1e6
    assert not (captured.capture / "capture.log").exists()
