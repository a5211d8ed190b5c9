"""The hooks: invisible to training, blind to layout, and each tensor counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from align.layers.captured import CapturedStep, captured_steps
from align.layers.forward_rung import activations
from align.layers.measure import difference
from align.layers.start import POSITIONS
from align.layout.address import Address
from dumps.capture.failures import FailureLog
from dumps.capture.sketch import recorder as recorder_module
from dumps.capture.sketch.local import Local
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients, record_parameters
from dumps.store.tensor_records import Phase
from tests.unit.layer_runs import batch, loss_of, recorded, tiny_qwen2


def step_of(folder: Path, **keys: Any) -> CapturedStep:
    return captured_steps(recorded(folder, **keys))[1]


def worst(own: CapturedStep, other: CapturedStep, phase: str) -> float:
    records, others = own.of(phase), other.of(phase)
    assert records.keys() == others.keys() != set()
    assert {a: r.digest for a, r in records.items()} == {a: r.digest for a, r in others.items()}
    return max(difference(record, others[a]).relative for a, record in records.items())


def test_training_is_bitwise_the_same_and_draws_the_same_random_numbers(tmp_path: Path) -> None:
    results = []
    for is_on in (False, True):
        model = tiny_qwen2(attention_dropout=0.2).train()
        torch.manual_seed(11)
        if is_on:
            with sketched_step(model, tmp_path, 1, FailureLog(tmp_path, "test")) as recorder:
                loss = loss_of(model, batch())
                loss.backward()
                record_gradients(recorder, model)
        else:
            loss = loss_of(model, batch())
            loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append((loss.detach(), gradients, torch.get_rng_state()))
    (loss, gradients, state), (other_loss, others, other_state) = results
    assert loss.equal(other_loss)
    assert all(gradients[name].equal(others[name]) for name in gradients)
    assert state.equal(other_state)
    assert (tmp_path / "sketches" / "rank_0" / "1.safetensors").is_file()


def test_what_no_rule_covers_is_named_and_not_recorded(tmp_path: Path) -> None:
    model = tiny_qwen2()
    known = Address("model.norm", torch.arange(64), torch.arange(64))
    own = Local(outputs={"model.norm": (known,), "lm_head": ()}, weights={})
    with sketched_step(model, tmp_path, 1, FailureLog(tmp_path, "test"), local=[own]) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER, local=own)
        loss_of(model, batch())
    names = {name for name, _ in model.named_modules() if name} - {"model.layers"}
    assert recorder.unaligned == names - {"model.norm", "lm_head"}
    assert {name for name, phase, _ in recorder.sums if phase == Phase.FORWARD} == {"model.norm"}
    told = {f"no rule says what the parameter {n} is" for n, _ in model.named_parameters()}
    assert recorder.problems == told


def test_a_rank_that_repeats_another_one_adds_its_own_features_alone(tmp_path: Path) -> None:
    outputs = {
        "model.norm": (Address("model.norm", torch.arange(64), torch.arange(64)),),
        # as if gate and up were the halves of one projection, and this the second rank of two
        "model.layers.0.mlp.gate_proj": (
            Address("gate", torch.arange(48), torch.arange(48, 96), is_whole=False),
            Address("up", torch.arange(48, 96), torch.arange(48, 96), is_whole=False),
        ),
    }
    steps = {}
    for rank in range(2):
        model, folder = tiny_qwen2(), tmp_path / str(rank)
        own = Local(outputs=outputs, tensor_rank=rank, tensor_ranks=2)
        with sketched_step(model, folder, 1, FailureLog(folder, "test"), local=[own]) as recorder:
            loss_of(model, batch()).backward()
        steps[rank] = recorder.sums
    assert ("model.norm", Phase.FORWARD, 0) in steps[0]
    assert not [key for key in steps[1] if key[0] in ("model.norm", "position_ids")]
    for phase in (Phase.FORWARD, Phase.GRADIENT):
        assert steps[1]["up", phase, 0].shape == (3 * 16 - 14, 48)
        assert not steps[1]["up", phase, 0].sketch.equal(steps[1]["gate", phase, 0].sketch)


def test_no_hook_stays_behind(tmp_path: Path) -> None:
    model = tiny_qwen2()
    with sketched_step(model, tmp_path, 1, FailureLog(tmp_path, "test")):
        loss_of(model, batch())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.GRADIENT, Phase.PARAMETER_GRADIENT])
def test_the_side_of_padding_does_not_matter(tmp_path: Path, phase: str) -> None:
    right, left = (step_of(tmp_path / side, side=side) for side in ("right", "left"))
    assert worst(right, left, phase) < 2e-6


def test_every_module_and_what_closes_attention_and_mlp_is_recorded(tmp_path: Path) -> None:
    step = step_of(tmp_path)
    names = {name for name, _ in step.of(Phase.FORWARD)}
    assert {n for n, _ in tiny_qwen2().named_modules() if n} == names | {"model.layers"}
    assert ("model.layers.0.self_attn.o_proj", 0) in step.of(Phase.INPUT)
    inputs = step.of(Phase.INPUT).keys() - {POSITIONS}
    assert len(activations(step)) == len(names) + len(inputs)


class Blocks(nn.Module):
    """Two linear blocks over an embedding, [s, b, h] inside, checkpointed where asked."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(128, 24)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(24, 24), nn.GELU()) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(input_ids).transpose(0, 1)
        for layer in self.layers:
            if self.reentrant is None:
                hidden = layer(hidden)
            else:
                hidden = checkpoint(layer, hidden, use_reentrant=self.reentrant)
        return hidden


def blocks(folder: Path, reentrant: bool | None) -> CapturedStep:
    model, inputs = Blocks(reentrant), batch()
    log = FailureLog(folder, "test")
    with sketched_step(model, folder, 1, log) as recorder:
        hidden = model(inputs["input_ids"], attention_mask=inputs["attention_mask"])
        attended = inputs["attention_mask"].T.bool()
        hidden[attended].square().sum().backward()
        record_gradients(recorder, model)
    from dumps.store.discover import discover
    from dumps.store.run_data import RunData

    return captured_steps(RunData(discover([folder])))[1]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.GRADIENT, Phase.PARAMETER_GRADIENT])
def test_a_recomputed_forward_counts_once(tmp_path: Path, reentrant: bool, phase: str) -> None:
    plain = blocks(tmp_path / "plain", None)
    again = blocks(tmp_path / "again", reentrant)
    assert worst(plain, again, phase) == 0


def test_a_second_kind_of_pass_is_not_added_to_the_first(tmp_path: Path) -> None:
    model, inputs = tiny_qwen2(), batch()
    with sketched_step(model, tmp_path, 1, FailureLog(tmp_path, "test")) as recorder:
        with torch.no_grad():
            loss_of(model, inputs)
        counts = recorder.sums["lm_head", Phase.FORWARD, 0].num_elements
        loss_of(model, inputs).backward()
        assert recorder.sums["lm_head", Phase.FORWARD, 0].num_elements == counts
        assert ("lm_head", Phase.GRADIENT, 0) in recorder.sums


def test_micro_batches_add_up_to_the_batch(tmp_path: Path) -> None:
    own = step_of(tmp_path / "whole")
    model, inputs = tiny_qwen2(), batch()
    folder = tmp_path / "parts"
    with sketched_step(model, folder, 1, FailureLog(folder, "test")):
        for rows in (slice(0, 1), slice(1, 3)):
            model(**{name: tensor[rows] for name, tensor in inputs.items()})
    from dumps.store.discover import discover
    from dumps.store.run_data import RunData

    parts = captured_steps(RunData(discover([folder])))[1]
    assert worst(own, parts, Phase.FORWARD) < 2e-6


def test_a_failing_sketch_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(recorder_module, "sums_of", fail)
    model = tiny_qwen2()
    with sketched_step(model, tmp_path, 1, FailureLog(tmp_path, "test")):
        loss_of(model, batch()).backward()
    assert model.lm_head.weight.grad is not None
    assert not (tmp_path / "sketches").exists()
    assert "out of memory" in (tmp_path / "capture.log").read_text(encoding="utf-8")


def test_autocast_and_tf32_do_not_reach_the_sketch(tmp_path: Path) -> None:
    own = step_of(tmp_path / "own")
    model, folder = tiny_qwen2(), tmp_path / "autocast"
    torch.set_float32_matmul_precision("medium")
    try:
        with (
            sketched_step(model, folder, 1, FailureLog(folder, "test")) as recorder,
            torch.autocast("cpu", torch.bfloat16),
        ):
            recorder.add_weight("w", Phase.PARAMETER, model.lm_head.weight)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    weight = own.of(Phase.PARAMETER)["lm_head.weight", 0].sketch
    sketch = recorder.sums["w", Phase.PARAMETER, 0].sketch[:16, :16].double().numpy() / 16
    assert abs(sketch - weight).max() < 1e-5 * abs(weight).max()
