"""verl's Megatron engine and actor under capture, where verl is not installed: on a double."""

from __future__ import annotations

import inspect
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch
from torch import Tensor, nn

from align.core.rung import RungStatus
from align.frameworks.verl_hooks import HOOKS
from align.layers import weight_sync_rung
from align.layers.captured import captured_steps
from dumps.capture.install import put_in
from dumps.capture.plan import CapturePlan, What
from dumps.capture.session import Session
from dumps.capture.taps import verl_rank, verl_worker
from dumps.capture.taps.verl_engine import record_loaded
from dumps.readers import captured_step
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.unit import mindspeed_rl_double, verl_megatron_double
from tests.unit.verl_megatron_double import SIGNATURES, Worker, engine_module

ROWS = [torch.arange(4) + 1, torch.arange(6) + 9, torch.arange(3) + 20]
KINDS = (What.SKETCHES, What.INPUTS, What.GRAD_NORMS, What.LOG_PROBS, What.RNG)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_worker, "_worker", verl_rank.Rank())
    for name, module in mindspeed_rl_double.groups().items():
        monkeypatch.setitem(sys.modules, name, module)


def hooked(folder: Path, *modules: ModuleType, version: tuple[int, int] = (0, 9)) -> Session:
    session = Session(CapturePlan(folder, KINDS))
    by_name = {module.__name__: module for module in modules}
    for point in HOOKS:
        if point.module in by_name and point.fits(version):
            put_in(session, by_name[point.module], point)
    return session


def engine_and_worker(folder: Path, **settings: Any) -> tuple[Any, Worker, Session]:
    module = engine_module()
    workers = ModuleType("verl.workers.engine_workers")
    kind = type("ActorRolloutRefWorker", (Worker,), {})
    workers.ActorRolloutRefWorker = kind  # type: ignore[attr-defined]
    session = hooked(folder, module, workers)
    engine = module.MegatronEngineWithLMHead(**settings)
    engine.initialize()
    return engine, kind(), session


def send(engine: Any, worker: Worker, session: Session, model: nn.Module, step: int) -> None:
    """Send weights as `ActorRolloutRefWorker.update_weights` does, and load them as vLLM does."""
    worker.update_weights(global_steps=step)
    engine.get_per_tensor_param(base_sync_done=True)
    given = dict(mindspeed_rl_double.for_engine(engine.module[0]))
    for name, parameter in model.named_parameters():
        parameter.data = given[name]
    record_loaded(session, model, mindspeed_rl_double.CONFIG)
    engine.offload()


def run(folder: Path, rows: list[Tensor], **settings: Any) -> RunData:
    engine, worker, session = engine_and_worker(folder, **settings)
    model = mindspeed_rl_double.engine_model()
    send(engine, worker, session, model, 0)
    for step in (1, 2):
        engine.train(rows, forward_only=True)
        engine.train(rows)
        send(engine, worker, session, model, step)
    session.drain()
    return RunData(discover([folder]))


def test_the_double_has_the_signatures_of_the_hooked_names() -> None:
    module = engine_module()
    points = [point for point in HOOKS if point.module == module.__name__]
    assert {point.attribute for point in points} == SIGNATURES.keys()
    for name, parameters in SIGNATURES.items():
        function = attrgetter(name)(module)
        assert tuple(inspect.signature(function).parameters) == parameters


def test_weights_are_read_as_they_are_sent_not_while_they_are_away(tmp_path: Path) -> None:
    data = run(tmp_path, ROWS)
    assert not (tmp_path / "capture.log").exists()
    steps = captured_steps(data)
    assert list(steps) == [1, 2, 3]
    for phase in (Phase.PARAMETER, Phase.ENGINE):
        assert len(steps[2].of(phase)) == 3 + 2 * 12
    result = weight_sync_rung.compare(data, data)
    assert result.status is RungStatus.ALIGNED and "3 and 3 steps" in result.summary.en


def test_padding_of_a_micro_batch_is_no_token(tmp_path: Path) -> None:
    """The model is called without a mask; causal attention leaves the real tokens as they are."""
    records = captured_steps(run(tmp_path / "a", ROWS))[1].of(Phase.FORWARD)
    assert {record.num_elements / record.shape[-1] for record in records.values()} == {13}
    alone = captured_steps(run(tmp_path / "b", ROWS[1:2]))[1].of(Phase.FORWARD)
    assert {record.num_elements / record.shape[-1] for record in alone.values()} == {6}


@pytest.mark.parametrize("has_rows", [True, False])
def test_only_one_rank_of_a_model_records_its_rows(tmp_path: Path, has_rows: bool) -> None:
    run(tmp_path, ROWS, has_rows=has_rows)
    part = captured_step.read(tmp_path / "steps/000001/actor-0.safetensors")
    assert ("update.0.micro.0.cu_seqlens" in part.tensors) is has_rows
    assert part.gradient_squares(0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dynamic_context_parallel": True}, "dynamic context parallelism"),
        ({"use_megatron_fsdp": True}, "FSDP"),
        ({"peft_cls": object()}, "adapters"),
        ({"_qat_enabled": True}, "quantisation-aware training"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_rule_reads_is_said_and_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    begin = verl_megatron_double.Engine.initialize

    def initialize(self: Any) -> None:
        begin(self)
        vars(self).update({name: value for name, value in changed.items() if value is not True})
        self._qat_enabled = "_qat_enabled" in changed

    monkeypatch.setattr(verl_megatron_double.Engine, "initialize", initialize)
    run(tmp_path, ROWS, **{n: v for n, v in changed.items() if v is True and n[0] != "_"})
    log = (tmp_path / "capture.log").read_text()
    assert f"no sketches of activations or weights: {said} under Megatron" in log
    assert log.count("\n") == 1
    assert not list(tmp_path.glob("sketches/rank_*")) + list(tmp_path.glob("sketches/sync_*"))


def test_the_reference_and_the_critic_are_not_the_actor(tmp_path: Path) -> None:
    module = engine_module()
    session = hooked(tmp_path, module)
    for engine in (
        module.MegatronEngineWithLMHead(forward_only=True),
        module.MegatronEngineWithValueHead(),
    ):
        engine.initialize()
        engine.train(ROWS, forward_only=True)
    session.drain()
    assert verl_worker.this_rank().module is None
    assert not (tmp_path / "capture.log").exists()


class OldActor:
    """`MegatronPPOActor` of verl 0.5 to 0.7, as far as it updates."""

    def __init__(self) -> None:
        self.actor_module = [mindspeed_rl_double.Actor()]
        self.actor_optimizer = mindspeed_rl_double.Optimizer(self.actor_module[0])

    def update_policy(self, dataloader: Any) -> dict[str, list[float]]:
        norms = []
        for log_prob in dataloader:
            for parameter in self.actor_module[0].parameters():
                parameter.grad = torch.ones_like(parameter)
            masks = torch.ones_like(log_prob)
            sys.modules["verl.workers.actor.megatron_actor"].get_policy_loss_fn("vanilla")(
                old_log_prob=log_prob, log_prob=log_prob, advantages=masks, response_mask=masks
            )
            norms.append(self.actor_optimizer.step()[1])
        return {"actor/grad_norm": norms}


@pytest.mark.parametrize("tensor_rank", [0, 1])
def test_a_megatron_actor_of_older_verl_is_recorded_update_by_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor_rank: int
) -> None:
    groups: Any = sys.modules["megatron.core.parallel_state"]
    groups.get_tensor_model_parallel_rank = lambda: tensor_rank
    groups.get_context_parallel_rank = lambda: 0
    actors = ModuleType("verl.workers.actor.megatron_actor")
    vars(actors).update(
        MegatronPPOActor=type("MegatronPPOActor", (OldActor,), {}),
        get_policy_loss_fn=lambda name: lambda **given: (given["log_prob"].mean(), {}),
    )
    monkeypatch.setitem(sys.modules, actors.__name__, actors)

    class ActorRolloutRefWorker:
        def update_actor(self, data: Any) -> Any:
            return actors.MegatronPPOActor().update_policy(data)

        def load_checkpoint(self, checkpoint_path: Any, hdfs_path: Any = None) -> None:
            """Load nothing."""

    workers = ModuleType("verl.workers.megatron_workers")
    workers.ActorRolloutRefWorker = ActorRolloutRefWorker  # type: ignore[attr-defined]
    session = hooked(tmp_path, actors, workers, version=(0, 7))
    worker = ActorRolloutRefWorker()
    worker.load_checkpoint(checkpoint_path="/ckpt/global_step_6/actor")
    assert worker.update_actor([torch.zeros(2, 3), torch.ones(2, 3)])["actor/grad_norm"] == [1, 1]
    session.drain()
    part = captured_step.read(tmp_path / "steps/000007/actor-0.safetensors")
    count = sum(p.numel() for p in mindspeed_rl_double.Actor().parameters())
    assert part.num_updates == 2
    assert sum(part.gradient_squares(1).values()) == (
        count if tensor_rank == 0 else pytest.approx(0)
    )
    losses = [name for name in part.tensors if name.endswith("policy_loss")]
    assert len(losses) == (2 if tensor_rank == 0 else 0)
    log = (tmp_path / "capture.log").read_text()
    assert log.count("no sketches of activations or weights: Megatron before verl 0.8") == 1
    assert log.count("\n") == 1
