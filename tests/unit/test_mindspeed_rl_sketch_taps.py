"""Sketches of MindSpeed-RL, where it is not installed: on a double with its names and tensors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch
from torch import Tensor

from align.core.rung import RungStatus
from align.frameworks.mindspeed_rl_hooks import HOOKS
from align.layers import weight_sync_rung
from align.layers.captured import CapturedStep, captured_steps
from dumps.capture.install import _Hook, put_in
from dumps.capture.plan import CapturePlan, What
from dumps.capture.session import Session
from dumps.capture.taps import mindspeed_rl
from dumps.capture.taps.mindspeed_rl_sketches import attended
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.unit import mindspeed_rl_double as double
from tests.unit.mindspeed_rl_signatures import signature

STEPS = 3
Params = dict[str, Tensor]
Fault = Callable[["Engine", Params], None]


class Engine:
    """vLLM's as MindSpeed-RL has it; a fault, if any, happens from step 2 on."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.model, self.fault, self.syncs = double.engine_model(), fault, 0
        self.hf_config = SimpleNamespace(to_dict=lambda: dict(double.CONFIG))

    def sync_model_weights(self, params: Params) -> None:
        self.syncs += 1
        if self.fault is not None and self.syncs > 1:
            self.fault(self, params)
        for name, parameter in self.model.named_parameters():
            if name in params:
                parameter.data = params[name]


def rows(padding: int) -> dict[str, Tensor]:
    """Return three rows of unequal length, padded with an id that means nothing."""
    lengths = torch.tensor([[4], [6], [3]])
    ids = torch.arange(6 + padding).repeat(3, 1) + torch.tensor([[1], [9], [20]])
    ids[torch.arange(6 + padding) >= lengths] = 39
    return {"input_ids": ids.int(), "prompt_length": lengths - 2,
            "response_length": torch.full_like(lengths, 2)}  # fmt: skip


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault | None = None,
    *,
    padding: int = 0,
    settings: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
) -> RunData:
    """Run three steps of the double under a capture of sketches."""
    monkeypatch.setattr(mindspeed_rl, "_worker", mindspeed_rl._Worker())
    for name, module in double.groups().items():
        monkeypatch.setitem(sys.modules, name, module)
    made = {f"mindspeed_rl.{name}": module for name, module in double.modules().items()}
    session = Session(CapturePlan(folder, (What.SKETCHES,), **(plan or {})))
    for point in HOOKS:
        if point.module in made:
            put_in(session, made[point.module], point)
    torch.manual_seed(4)
    kind = made["mindspeed_rl.workers.actor_hybrid_worker"].ActorHybridWorkerBase
    worker = kind(Engine(fault))
    vars(worker.megatron_config).update(settings or {})
    worker.data = rows(padding)
    for _ in range(STEPS):
        worker.generate_sequences()
        worker.compute_log_prob(worker.data)
        worker.update()
    session.drain()
    return RunData(discover([folder]))


def first_step(data: RunData) -> CapturedStep:
    return captured_steps(data)[1]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    folder = tmp_path_factory.mktemp("clean")
    with pytest.MonkeyPatch.context() as monkeypatch:
        data = run(folder, monkeypatch)
    assert not (folder / "capture.log").exists()
    return data


def test_the_double_has_the_recorded_signatures() -> None:
    made = {f"mindspeed_rl.{name}": module for name, module in double.modules().items()}
    for point in HOOKS:
        if point.module in made:
            function = attrgetter(point.attribute)(made[point.module])
            assert list(inspect.signature(function).parameters) == signature(point.name, "master")


def test_a_step_has_activations_gradients_updates_moments_and_both_sides_of_the_sync(
    clean: RunData,
) -> None:
    steps = captured_steps(clean)
    assert list(steps) == [1, 2, 3]
    parameters = {name for name, _ in steps[2].of(Phase.PARAMETER)}
    assert len(parameters) == 3 + 2 * 12 and "model.layers.1.self_attn.v_proj.bias" in parameters
    phases = (Phase.ENGINE, Phase.PARAMETER_GRADIENT, Phase.UPDATE, Phase.FIRST_MOMENT)
    for phase in phases:
        assert {name for name, _ in steps[2].of(phase)} == parameters
    modules = {name for name, _ in steps[2].of(Phase.FORWARD)}
    assert modules == {name for name, _ in steps[2].of(Phase.GRADIENT)}
    assert {"model.embed_tokens", "model.layers.0.mlp.up_proj", "lm_head"} <= modules


def test_padding_of_a_micro_batch_is_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: RunData
) -> None:
    """The model is called without a mask; causal attention leaves the real tokens as they are."""
    wider = first_step(run(tmp_path, monkeypatch, padding=5))
    for phase in (Phase.FORWARD, Phase.GRADIENT):
        for address, record in first_step(clean).of(phase).items():
            other = wider.of(phase)[address]
            assert other.digest == record.digest
            assert other.num_elements == record.num_elements
            assert other.sketch == pytest.approx(record.sketch, abs=1e-5)


def test_packed_rows_are_told_from_the_padding_between_them() -> None:
    """As `preprocess_packed_seqs` lays them out: each row up to a multiple."""
    ids = torch.arange(12)[None]
    lengths, bounds = torch.tensor([3, 4], dtype=torch.int32), torch.tensor([0, 4, 12])
    for behind in ((lengths, bounds), (lengths, bounds, None)):  # 2.1.0, and 2.2.0 and later
        mask = attended((ids, torch.zeros_like(ids), {}, *behind))
        assert mask.int().tolist() == [[1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0]]


def test_rows_of_the_first_branch_come_with_a_mask_before_them() -> None:
    batch = rows(1)
    mask = attended((batch["input_ids"], None, None, batch))
    assert mask.sum(1).tolist() == [4, 6, 3]


def never_again(engine: Engine, params: Params) -> None:
    params.clear()


def scaled(engine: Engine, params: Params) -> None:
    params["model.layers.1.mlp.down_proj.weight"] *= 1.05


def swapped(engine: Engine, params: Params) -> None:
    name = "model.layers.0.mlp.gate_up_proj.weight"
    params[name] = torch.cat(params[name].chunk(2)[::-1])


def without_head(engine: Engine, params: Params) -> None:
    engine.model.lm_head = torch.nn.Identity()


@pytest.mark.parametrize(
    ("fault", "kind", "step", "named"),
    [
        (never_again, "weight_sync.not_synced", 3, "model.embed_tokens.weight"),
        (scaled, "weight_sync.scaled", 2, "model.layers.1.mlp.down_proj.weight"),
        (swapped, "weight_sync.permuted", 2, "model.layers.0.mlp.up_proj.weight"),
        (without_head, "weight_sync.missing", 2, "lm_head.weight"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_of_the_resharding_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clean: RunData,
    fault: Fault,
    kind: str,
    step: int,
    named: str,
) -> None:
    result = weight_sync_rung.compare(clean, run(tmp_path, monkeypatch, fault))
    (found,) = result.findings
    assert (found.id, result.status) == (kind, RungStatus.DIVERGED)
    assert f"at step {step}" in found.title.en and named in (found.evidence[0].text or "")


def test_a_sound_resharding_has_no_finding(clean: RunData) -> None:
    assert weight_sync_rung.compare(clean, clean).status is RungStatus.ALIGNED


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noop_layers": "3"}, "no sketches of activations or weights: layers that do nothing"),
        ({"context_parallel_size": 2}, "no sketch of activations: ranks share sequences"),
        ({"lora_target_modules": ["linear_qkv"]}, "no sketch of the weights at syncs: adapters"),
    ],
)
def test_what_is_not_sketched_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    run(tmp_path, monkeypatch, settings=settings)
    log = (tmp_path / "capture.log").read_text(encoding="utf-8")
    assert log.count(said) == 1 and "failed" not in log


def test_an_embedding_moved_by_one_rounding_unit_moves_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: RunData
) -> None:
    moved = first_step(run(tmp_path, monkeypatch, plan={"perturbs": True}))
    for name in ("model.embed_tokens", "lm_head"):
        own, other = (step.of(Phase.FORWARD)[name, 0] for step in (first_step(clean), moved))
        assert own.digest == other.digest
        assert own.sketch != pytest.approx(other.sketch, rel=1e-12, abs=0)
        assert other.l2 == pytest.approx(own.l2, rel=1e-5)


def test_modules_are_chosen_by_the_names_they_have_in_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"modules": "model.layers.*.self_attn.[qv]_proj", "tensors": ("*.0.mlp.gate_proj",)}
    step = first_step(run(tmp_path, monkeypatch, plan=plan))
    assert {name for name, _ in step.of(Phase.FORWARD)} == {
        *(f"model.layers.{i}.self_attn.{letter}_proj" for i in (0, 1) for letter in "qv"),
        "model.layers.0.mlp.gate_proj",
    }
    assert list(tmp_path.rglob("tensors/**/*.safetensors"))


def test_a_branch_that_lacks_a_later_function_is_hooked_without_it(tmp_path: Path) -> None:
    """`ActorHybridWorkerBase.enter_infer_mode` is of 2.2.0; the source says no version."""
    name = "workers.actor_hybrid_worker"
    module = double.modules()[name]
    del module.ActorHybridWorkerBase.enter_infer_mode
    points = [point for point in HOOKS if point.module == f"mindspeed_rl.{name}"]
    _Hook(Session(CapturePlan(tmp_path)), tuple(points))(module)
    assert hasattr(module.ActorHybridWorkerBase.generate_sequences, "__wrapped__")
    assert not (tmp_path / "capture.log").exists()
    del module.ActorHybridWorkerBase.update
    _Hook(Session(CapturePlan(tmp_path)), tuple(points))(module)
    assert "ActorHybridWorkerBase.update" in (tmp_path / "capture.log").read_text(encoding="utf-8")
