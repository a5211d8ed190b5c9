"""Training is bit by bit the same with a capture and without one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch
from torch import nn

from dumps.capture.install import hook_points, put_in
from dumps.capture.plan import CapturePlan, What
from dumps.capture.session import Session
from dumps.readers import captured_step, sketches
from dumps.readers.reader import no_progress
from dumps.store.tensor_records import Phase
from dumps.store.verify import verify
from tests.stack.tiny_run import TINY, contents

STEPS = 3


def worker(engine: type, losses: type) -> dict[str, ModuleType]:
    """Return modules named as verl 0.9's, with classes of the same names and signatures."""
    transformer = ModuleType("verl.workers.engine.fsdp.transformer_impl")
    transformer.FSDPEngine = transformer.FSDPEngineWithLMHead = engine  # type: ignore[attr-defined]
    critic = type("FSDPEngineWithValueHead", (engine,), {})
    transformer.FSDPEngineWithValueHead = critic  # type: ignore[attr-defined]
    loss = ModuleType("verl.workers.utils.losses")
    loss.get_policy_loss_fn = losses.get_policy_loss_fn  # type: ignore[attr-defined]
    loss.agg_loss = lambda loss_mat, loss_mask: (loss_mat * loss_mask).sum()  # type: ignore[attr-defined]

    def compute_value_loss(vpreds: Any, returns: Any, values: Any, response_mask: Any) -> Any:
        return ((vpreds - returns).square() * response_mask).mean(), torch.zeros(())

    loss.compute_value_loss = compute_value_loss  # type: ignore[attr-defined]

    def ppo_loss(config: Any, model_output: Any, data: Any) -> Any:
        log_probs, mask = model_output["log_probs"], torch.ones_like(model_output["log_probs"])
        value, metrics = loss.get_policy_loss_fn("vanilla")(
            old_log_prob=log_probs.detach() if data["first"] else data["old"],
            log_prob=log_probs,
            advantages=data["a"],
            response_mask=mask,
        )
        entropy = loss.agg_loss(loss_mat=model_output["entropy"], loss_mask=mask)
        kl = loss.agg_loss(loss_mat=(log_probs - data["old"]).square(), loss_mask=mask)
        return value - 0.01 * entropy + 0.02 * kl, metrics

    loss.ppo_loss = ppo_loss  # type: ignore[attr-defined]
    workers = ModuleType("verl.workers.engine_workers")
    workers.ActorRolloutRefWorker = type(  # type: ignore[attr-defined]
        "ActorRolloutRefWorker",
        (),
        {
            "update_weights": lambda self, global_steps=None: None,
            "config": SimpleNamespace(rollout=SimpleNamespace(dtype="bfloat16")),
        },
    )
    return {module.__name__: module for module in (transformer, loss, workers)}


def make_engine() -> type:
    class Engine:
        engine_config = SimpleNamespace(forward_only=False)

        def initialize(self) -> None:
            self.module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
            self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.01)

        def get_data_parallel_size(self) -> int:
            return 1

        def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
            return loss_function(self.module(micro_batch["x"]).log_softmax(-1), micro_batch)

        def optimizer_step(self) -> float:
            norm = nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return float(norm)

    return Engine


class Losses:
    @staticmethod
    def get_policy_loss_fn(name: str) -> Any:
        def vanilla(
            old_log_prob: Any, log_prob: Any, advantages: Any, response_mask: Any, **_: Any
        ) -> Any:
            ratio = (log_prob - old_log_prob).exp()
            return -(ratio * advantages * response_mask).sum() / response_mask.sum(), {}

        return vanilla


def train(run: Path | None) -> dict[str, Any]:
    """Train three steps of two updates of two micro-batches; hooked where there is a run folder."""
    modules = worker(make_engine(), Losses)
    if run is not None:
        kinds = tuple(What)
        session = Session(CapturePlan(run, kinds, modules="*", stops_on_error=True))
        for point in hook_points():
            if point.module in modules and point.fits((0, 9)):
                put_in(session, modules[point.module], point)
    transformer, loss, workers = modules.values()
    torch.manual_seed(1)
    engine, sync = transformer.FSDPEngine(), workers.ActorRolloutRefWorker()
    critic = transformer.FSDPEngineWithValueHead()
    engine.initialize()
    critic.initialize()
    sync.update_weights(global_steps=0)
    result: dict[str, Any] = {"losses": [], "norms": [], "value_losses": [], "critic_norms": []}

    def policy(log_prob: Any, micro: Any) -> Any:
        output = {"log_probs": log_prob, "entropy": -(log_prob.exp() * log_prob)}
        return loss.ppo_loss(SimpleNamespace(use_kl_loss=True), output, micro)

    def value(predicted: Any, micro: Any) -> Any:
        given = {"returns": micro["a"], "values": micro["a"], "response_mask": torch.ones(5, 3)}
        return loss.compute_value_loss(vpreds=predicted, **given)

    for step in range(1, STEPS + 1):
        for update in range(2):
            micro = {"x": torch.randn(5, 4), "a": torch.randn(5, 3)}
            learned, _ = critic.forward_step(micro, value, forward_only=False)
            learned.backward()
            result["value_losses"].append(learned.item())
            result["critic_norms"].append(critic.optimizer_step())
            for _ in range(2):
                x, a = torch.randn(5, 4), torch.randn(5, 3)
                old = torch.full((5, 3), -1.1)
                rows = {"x": x, "a": a, "old": old, "first": update == 0}
                made, _ = engine.forward_step(rows, policy, forward_only=False)
                made.backward()
                result["losses"].append(made.item())
            result["norms"].append(engine.optimizer_step())
        sync.update_weights(global_steps=step)
    result["named"] = dict(engine.module.named_parameters())
    result["weights"] = [p.detach().clone() for p in engine.module.parameters()]
    result["weights"] += [p.detach().clone() for p in critic.module.parameters()]
    result["rng"] = torch.get_rng_state()
    return result


@pytest.fixture
def both(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any], Path]:
    return train(None), train(tmp_path / "run"), tmp_path / "run"


def test_losses_gradients_weights_and_generators_are_bitwise_equal(both: Any) -> None:
    plain, captured, _ = both
    for name in ("losses", "norms", "value_losses", "critic_norms"):
        assert captured[name] == plain[name]
    assert all(map(torch.equal, captured["weights"], plain["weights"]))
    assert torch.equal(captured["rng"], plain["rng"])


def test_that_loop_was_recorded_all_of_it(both: Any) -> None:
    plain, _, run = both
    assert not (run / "capture.log").exists()
    assert verify(run).whole_steps == (1, 2, 3)
    for step in range(1, STEPS + 1):
        part = captured_step.read(run / f"steps/{step:06d}/actor-0.safetensors")
        losses = [
            float(part.tensors[f"update.{u}.micro.{m}.policy_loss"])
            for u in range(2)
            for m in range(2)
        ]
        terms = [
            (
                part.tensors[f"{prefix}.entropys"].sum(),
                float(part.tensors[f"{prefix}.entropy_loss"]),
                float(part.tensors[f"{prefix}.kl_loss"]),
            )
            for prefix in (f"update.{u}.micro.{m}" for u in range(2) for m in range(2))
        ]
        whole = [
            own - 0.01 * entropy + 0.02 * kl
            for own, (_, entropy, kl) in zip(losses, terms, strict=True)
        ]
        assert whole == pytest.approx(plain["losses"][4 * step - 4 : 4 * step], rel=1e-5)
        for of_tokens, entropy, _ in terms:
            assert of_tokens == pytest.approx(entropy)
        norms = [sum(part.gradient_squares(u).values()) ** 0.5 for u in range(2)]
        assert norms == pytest.approx(plain["norms"][2 * step - 2 : 2 * step], rel=1e-6)
        critic = captured_step.read(run / f"steps/{step:06d}/critic-0.safetensors")
        assert critic.role == "critic"
        for u, name in ((u, f"update.{u}.") for u in range(2)):
            at = 2 * step - 2 + u
            assert float(critic.tensors[f"{name}micro.0.value_loss"]) == plain["value_losses"][at]
            assert float(critic.tensors[f"{name}grad_norm"]) == pytest.approx(
                plain["critic_norms"][at]
            )
        assert {m["module"] for m in part.modules} == {"", "0", "1", "2"}
        assert {m["phase"] for m in part.modules} == {"actor.train", "critic.train"}
    given = sketches.read(run / f"sketches/sync_0/{STEPS}.safetensors", no_progress)
    assert {record.phase for record in given.records} == {Phase.PARAMETER, Phase.SENT}
    made = sketches.read(run / f"sketches/rank_0/{STEPS}.safetensors", no_progress)
    updates = {(r.name, r.update): r.total for r in made.records if r.phase == Phase.UPDATE}
    for name, last in zip(plain["named"], plain["weights"], strict=False):
        before = next(r for r in given.records if (r.name, r.phase) == (name, Phase.PARAMETER))
        added = updates[(name, 0)] + updates[(name, 1)]
        assert before.total + added == pytest.approx(float(last.sum()), abs=1e-5)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the stack needs transformers"
)
def test_a_run_of_the_stack_has_equal_bytes_with_and_without_capture(tmp_path: Path) -> None:
    align = Path(sys.executable).with_name("align")
    runs = {}
    for name, prefix in (
        ("plain", []),
        ("captured", ["capture", "-o", str(tmp_path / "run"), "--"]),
    ):
        command = [str(align), *prefix, *([str(align)] if prefix else [])]
        command += ["train", *TINY, "-o", str(tmp_path / name)]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        runs[name] = contents(tmp_path / name)
    assert runs["captured"] == runs["plain"]
    assert verify(tmp_path / "run").whole_steps == (1, 2, 3)
    own = (tmp_path / "plain/metrics.jsonl").read_text().splitlines()
    captured = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert list(map(json.loads, captured)) == list(map(json.loads, own))
