"""Sketches of the real verl: they are those of the plain model, whatever verl wraps it in.

The runs are those of `test_verl_capture`, and one on two ranks with packed rows whose rollout
engine is never given one of the weights. About two minutes more.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("transfer_queue", reason="verl's V1 trainer needs TransferQueue")

import torch

from align.core.rung import Rung, RungStatus
from align.ladder import climb
from align.layers import backward_rung, forward_rung, update_rung, weight_sync_rung
from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_parameters
from dumps.readers.trainer_inputs import read as read_inputs
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.frameworks.verl.runs import SKIPPED, STEPS, Pair, Ran

FLOAT32 = 2e-6  # what sketches of one tensor computed in two ways may differ by


@pytest.fixture(params=["v1", "v0"])
def captured(request: pytest.FixtureRequest) -> Ran:
    return request.getfixturevalue(request.param).captured


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


def test_both_trainers_agree_in_layers_gradients_updates_and_syncs(v1: Pair, v0: Pair) -> None:
    runs = data(v1.captured), data(v0.captured)
    for rung in (forward_rung, backward_rung, update_rung, weight_sync_rung):
        result = rung.compare(*runs)
        assert result is not None
        assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary


def test_two_ranks_with_packed_rows_agree_with_one_with_padded_ones(
    v1: Pair, two_ranks: Ran
) -> None:
    runs = data(v1.captured), data(two_ranks)
    for rung in (forward_rung, backward_rung, update_rung):
        result = rung.compare(*runs)
        assert result is not None
        assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary


def test_an_engine_that_is_never_given_a_weight_is_named(v1: Pair, two_ranks: Ran) -> None:
    results = {r.name: r for r in climb(data(v1.captured), data(two_ranks)).rungs}
    result = results[Rung.WEIGHT_SYNC]
    (finding,) = result.findings
    assert finding.id == "weight_sync.not_synced"
    assert "in the candidate: 1/" in finding.title.en
    assert SKIPPED in str(finding.evidence[0].text)


def test_sketches_of_a_whole_run_are_small(captured: Ran) -> None:
    sizes = [path.stat().st_size for path in (captured.capture / "sketches").rglob("*.safetensors")]
    assert sum(sizes) / len(STEPS) < 1e6
    assert not (captured.capture / "capture.log").exists()


def test_a_failure_of_the_capture_would_be_in_its_log(two_ranks: Ran) -> None:
    assert not (Path(two_ranks.capture) / "capture.log").exists()
