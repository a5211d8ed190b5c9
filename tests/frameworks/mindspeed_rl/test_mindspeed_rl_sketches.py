"""Sketches of the real MindSpeed-RL: its actor on Megatron-core, and its resharding into vLLM.

The actor's activations, gradients, updates and moments are held against Hugging Face's model in
float64; the engine, which MindSpeed-RL's own resharding fills, against the actor, clean and with
faults planted in the resharding.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")
pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
from torch import Tensor

from align.core.rung import RungStatus
from align.layers import backward_rung, forward_rung, update_rung, weight_sync_rung
from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import (
    parameters_of,
    record_gradients,
    record_moments,
    record_update,
)
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.frameworks.mindspeed_rl.runs import SKETCHES, SOURCE, Ran, run
from tests.frameworks.mindspeed_rl.test_mindspeed_rl_capture import hugging_face, loss_of
from tests.frameworks.mindspeed_rl.tiny_run import FAULTS, MICRO, MINI, ROWS

pytestmark = pytest.mark.skipif(
    SOURCE is None, reason="needs a checkout of MindSpeed-RL (set MINDSPEED_RL_SRC)"
)

LIMIT = 2e-6  # relative error of an address in float32
SQUARED = 4e-6  # of a square, which has twice the error
CANCELLING = 4e-6  # of a sum that is small beside its terms: softmax ignores most of a key's bias
ADAM = 5e-4  # of Adam's step, which makes of a tiny gradient's sign a whole step
ALONE = ("act_fn", "rotary_emb")  # modules of Hugging Face's that Megatron computes in functions


@pytest.fixture(scope="module")
def packed(folder: Path) -> Ran:
    """Two ranks, for which each row is padded to an even length; two engines of one rank each."""
    return run(folder, "packed", 2, *SKETCHES, PACKED="1", ENGINE_RANKS="1")


@pytest.fixture(params=["one", "two", "packed"])
def ran(request: pytest.FixtureRequest) -> Ran:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def expected(folder: Path, one: Ran) -> CapturedStep:
    """Sketch step 1 of Hugging Face's model in float64: its log_probs, and its first update."""
    held, out = one.ranks[0][0], folder / "hugging-face"
    model = hugging_face(held["weights"])
    # Megatron's default; its scheduler, which spares biases and norms the decay, is not there
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    ids, mask = padded(held["dock"]["input_ids"])
    with sketched_step(model, out, 1, FailureLog(out, "test")) as recorder:
        with torch.no_grad():
            model(input_ids=ids, attention_mask=mask)
        update_loss(model, held["dock"]).backward()
        record_gradients(recorder, model)
        before = parameters_of(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        record_update(recorder, model, before)
        record_moments(recorder, model, optimizer)
    return steps_of(out)[1]


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return ids [b, s] and their mask, one longer than MindSpeed-RL pads them."""
    width = max(map(len, rows)) + 1
    ids, mask = (torch.zeros(len(rows), width, dtype=torch.int64) for _ in range(2))
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = row.long(), 1
    return ids, mask


def update_loss(model: Any, dock: dict[str, list[Tensor]]) -> Tensor:
    """Return the loss of the first update: the mean of its micro-batches' means over tokens."""
    total = torch.zeros((), dtype=torch.float64)
    for first in range(0, MINI, MICRO):
        rows = range(first, first + MICRO)
        ids, mask = padded([dock["input_ids"][row] for row in rows])
        logits = model(input_ids=ids, attention_mask=mask).logits
        losses = []
        for logit, row in zip(logits, rows, strict=True):
            response, end = dock["responses"][row].long(), len(dock["input_ids"][row])
            log_probs = logit[end - len(response) - 1 : end - 1].log_softmax(-1)
            losses.append(loss_of(log_probs.gather(-1, response[:, None])[:, 0], row))
        total = total + torch.cat(losses).mean() / (MINI // MICRO)
    return total


def data_of(out: Path) -> RunData:
    return RunData(discover([out]))


def steps_of(out: Path) -> Any:
    return captured_steps(data_of(out))


def test_nothing_failed_and_everything_has_an_address(ran: Ran) -> None:
    log = ran.capture / "capture.log"
    assert not log.exists(), log.read_text(encoding="utf-8")
    assert steps_of(ran.capture)[1].unaligned == ("rotary_pos_emb",)


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT, Phase.GRADIENT,
                                   Phase.PARAMETER_GRADIENT, Phase.FIRST_MOMENT,
                                   Phase.SECOND_MOMENT, Phase.UPDATE])  # fmt: skip
def test_every_address_agrees_with_hugging_faces_model_in_float64(
    expected: CapturedStep, ran: Ran, phase: str
) -> None:
    """Before the update that is off-policy; the same tokens, whatever they are padded to."""
    reference = {name: record for (name, update), record in expected.of(phase).items()}
    candidate = {
        name: record
        for (name, update), record in steps_of(ran.capture)[1].of(phase).items()
        if update == 0
    }
    lacking = reference.keys() ^ candidate.keys()
    assert not {name for name in lacking if not name.endswith(ALONE)} - {"position_ids"}
    both = reference.keys() & candidate.keys()
    assert not {name for name in both if reference[name].digest != candidate[name].digest}
    errors = {name: difference(reference[name], candidate[name]).relative for name in both}
    worst = max(errors, key=errors.__getitem__)
    print(f"{phase}: {len(errors)} addresses, worst {errors[worst]:.2g} at {worst}")

    def limit(name: str) -> float:
        if phase in (Phase.UPDATE, Phase.SECOND_MOMENT):
            return ADAM if phase == Phase.UPDATE else SQUARED
        return CANCELLING if name.endswith("k_proj.bias") else LIMIT

    assert not {name: error for name, error in errors.items() if error > limit(name)}


@pytest.mark.parametrize("rung", [forward_rung, backward_rung, update_rung, weight_sync_rung],
                         ids=["forward", "backward", "update", "weight_sync"])  # fmt: skip
@pytest.mark.parametrize("other", ["two", "packed"])
def test_layouts_are_aligned(
    one: Ran, request: pytest.FixtureRequest, other: str, rung: Any
) -> None:
    ran: Ran = request.getfixturevalue(other)
    result = rung.compare(data_of(one.capture), data_of(ran.capture))
    assert not [(each.id, each.title.en) for each in result.findings]
    assert result.status is RungStatus.ALIGNED, result.summary.en


def test_the_weights_of_a_sync_are_those_the_step_begins_with(ran: Ran) -> None:
    """Read before MindSpeed-RL takes the actor off the device: the run's offloader leaves NaN."""
    for number, held in enumerate(ran.ranks[0], 1):
        weights = steps_of(ran.capture)[number].of(Phase.PARAMETER)
        assert {update for _, update in weights} == {0}
        norm = held["weights"]["decoder.final_layernorm.weight"].double()
        record = weights["model.norm.weight", 0]
        assert record.l2 == pytest.approx(float(norm.norm()), rel=1e-6)
        assert record.total == pytest.approx(float(norm.sum()), rel=1e-6)


NAMED = {
    "stale": ("weight_sync.stale", "51/51"),
    "left_out": ("weight_sync.not_synced", "2/51"),
    "scaled": ("weight_sync.scaled", "2/51"),
    "permuted": ("weight_sync.permuted", "2/51"),
    "missing": ("weight_sync.missing", "2/51"),
}


@pytest.fixture(scope="module")
def faulty(folder: Path) -> Ran:
    """Six steps on two ranks, with another fault in the resharding of each but the first."""
    steps = ("--steps", f"1-{max(FAULTS)}")
    return run(folder, "faulty", 2, *SKETCHES, *steps, PLANTED="1", STEPS=str(max(FAULTS)))


@pytest.mark.parametrize(("step", "fault"), FAULTS.items())
def test_a_fault_in_the_resharding_is_named(
    tmp_path: Path, one: Ran, faulty: Ran, step: int, fault: str
) -> None:
    assert not (faulty.capture / "capture.log").exists()
    sides = faulty.capture / "sketches"
    for side in (path for path in sides.iterdir() if path.name.startswith(("sync", "engine"))):
        for number in (1, step):
            own = tmp_path / "sketches" / side.name / f"{number}.safetensors"
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(side / own.name, own)
    result = weight_sync_rung.compare(data_of(one.capture), data_of(tmp_path))
    (found,) = result.findings
    kind, count = NAMED[fault]
    assert (found.id, result.status) == (kind, RungStatus.DIVERGED)
    assert count in found.title.en and f"at step {step}" in found.title.en
    if count == "2/51":
        named = found.evidence[0].text or ""
        assert "model.layers.1.mlp.gate_proj.weight" in named
        assert "model.layers.1.mlp.up_proj.weight" in named


@pytest.mark.parametrize("name", ["one", "two"])
def test_training_is_bitwise_the_same_without_a_capture(
    folder: Path, request: pytest.FixtureRequest, name: str
) -> None:
    captured: Ran = request.getfixturevalue(name)
    bare = run(folder, f"bare-{name}", len(captured.ranks))
    for own, other in zip(captured.ranks, bare.ranks, strict=True):
        for step, same in zip(own, other, strict=True):
            assert step["norms"] == same["norms"]
            assert torch.equal(step["random"], same["random"])
            assert all(torch.equal(same["weights"][n], t) for n, t in step["weights"].items())
            for column, rows in step["dock"].items():
                assert len(rows) == ROWS
                assert all(
                    torch.equal(a, b) for a, b in zip(rows, same["dock"][column], strict=True)
                )
