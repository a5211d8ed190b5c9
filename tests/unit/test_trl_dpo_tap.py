"""What is kept of DPOTrainer's losses: a double with its names, and plain modules as models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="taps run in torch")

import torch
from torch import Tensor, nn

from dumps.capture.plan import CapturePlan, What
from dumps.capture.session import Session, timed
from dumps.capture.taps import trl_dpo, trl_sketches
from dumps.capture.wrap import wrap
from dumps.readers import captured_step

IDS = torch.arange(12).reshape(4, 3)
INPUTS = {
    "input_ids": IDS,
    "attention_mask": torch.ones(4, 3, dtype=torch.long),
    "completion_mask": torch.tensor([[0, 1, 1]] * 4),
}


class Model(nn.Module):
    """Gives log_probs as TRL's fused head does."""

    def __init__(self, value: float, *, fused: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value))
        self.fused = fused

    def forward(self, ids: Tensor) -> Any:
        log_probs = self.weight * ids[:, 1:].float()
        return SimpleNamespace(**({"log_probs": log_probs} if self.fused else {}))


class DPOTrainer:
    """Stands for TRL's."""

    def __init__(self, model: Model, ref_model: Model | None) -> None:
        self.model, self.ref_model = model, ref_model
        self.state = SimpleNamespace(global_step=0)
        self.accelerator = SimpleNamespace(process_index=0, sync_gradients=True)
        self.optimizer = SimpleNamespace()
        self.error: Exception | None = None

    def compute_loss(self, model: Model, inputs: Any, return_outputs: bool = False) -> Any:
        outputs = model(inputs["input_ids"])
        with torch.no_grad():
            (self.ref_model or model)(inputs["input_ids"])
        if self.error is not None:
            raise self.error
        loss = outputs.log_probs.mean() if model.fused else model.weight * 2
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Model, inputs: Any) -> Tensor:
        loss: Tensor = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_dpo, "_now", trl_dpo._Trained())
    monkeypatch.setattr(trl_sketches, "_now", trl_sketches._Trained())


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Any]:
    made: list[Session] = []

    def session(*what: What, **plan: Any) -> Session:
        kinds = what or (What.LOG_PROBS, What.GRAD_NORMS)
        made.append(Session(CapturePlan(tmp_path, kinds, **plan)))
        return made[0]

    yield session
    for each in made:
        each.drain()


def hooked(session: Session, trainer: DPOTrainer) -> DPOTrainer:
    taps = {"compute_loss": trl_dpo.loss_computed, "training_step": trl_dpo.trained}
    for name, tap in taps.items():

        def bound(session: Session, *args: Any, tap: Any = tap, **kwargs: Any) -> Any:
            return tap(session, trainer, *args, **kwargs)

        wrap(trainer, name, f"DPOTrainer.{name}", timed(session, bound), session.log)
    return trainer


def kept(session: Session, step: int = 1) -> dict[str, Any]:
    session.drain()
    path = session.plan.run / f"steps/{step:06d}/preference-0.safetensors"
    assert captured_step.read(path).role == "preference"
    tensors = captured_step.read(path).tensors
    return {name.removeprefix("update.0."): tensor for name, tensor in tensors.items()}


def test_both_models_and_the_loss_are_kept_and_no_hook_stays(sessions: Any) -> None:
    session = sessions()
    trainer = hooked(session, DPOTrainer(Model(-1.0), Model(-2.0)))
    loss = trainer.training_step(trainer.model, INPUTS)
    own = kept(session)
    assert own["micro.0.log_probs"].tolist() == (-IDS[:, 1:].float()).tolist()
    assert own["micro.0.ref_log_prob"].tolist() == (-2 * IDS[:, 1:].float()).tolist()
    assert own["micro.0.preference_loss"].item() == loss.item()
    assert own["micro.0.response_mask"].tolist() == INPUTS["completion_mask"].tolist()
    gradient = trainer.model.weight.grad
    assert gradient is not None
    assert own["gradient_squares"].tolist() == [gradient.item() ** 2]
    assert not trainer.model._forward_hooks
    assert trainer.ref_model is not None and not trainer.ref_model._forward_hooks


def test_one_model_with_adapters_gives_both(sessions: Any) -> None:
    session = sessions()
    trainer = hooked(session, DPOTrainer(Model(-1.0), None))
    trainer.training_step(trainer.model, INPUTS)
    own = kept(session)
    assert own["micro.0.log_probs"].tolist() == own["micro.0.ref_log_prob"].tolist()


def test_sums_from_before_training_are_kept(sessions: Any) -> None:
    session = sessions()
    trainer = hooked(session, DPOTrainer(Model(-1.0), Model(-2.0)))
    sums = {"ref_chosen_logps": torch.tensor([1.0, 2.0]), "ref_rejected_logps": -torch.ones(2)}
    trainer.training_step(trainer.model, {**INPUTS, **sums})
    assert kept(session)["micro.0.ref_sequence_log_probs"].tolist() == [1.0, 2.0, -1.0, -1.0]


def test_micro_batches_of_a_step_are_counted(sessions: Any) -> None:
    session = sessions()
    trainer = hooked(session, DPOTrainer(Model(-1.0), Model(-2.0)))
    for is_last in (False, True):
        trainer.accelerator.sync_gradients = is_last
        trainer.training_step(trainer.model, INPUTS)
    assert {"micro.0.log_probs", "micro.1.log_probs"} <= kept(session).keys()


def test_ids_alone_are_kept_where_no_numbers_are_asked_for(sessions: Any) -> None:
    session = sessions(What.INPUTS)
    trainer = hooked(session, DPOTrainer(Model(-1.0), Model(-2.0)))
    trainer.training_step(trainer.model, INPUTS)
    names = {name.rpartition(".")[2] for name in kept(session)}
    assert names == {"input_ids", "attention_mask", "response_mask"}


def test_evaluations_and_steps_not_asked_for_are_left_out(sessions: Any) -> None:
    session = sessions(steps=((2, 2),))
    trainer = hooked(session, DPOTrainer(Model(-1.0), Model(-2.0)))
    trainer.training_step(trainer.model, INPUTS)
    trainer.state.global_step = 1
    trainer.model.eval()
    loss, _ = trainer.compute_loss(trainer.model, INPUTS, return_outputs=True)
    assert loss.item() < 0
    trainer.model.train()
    trainer.training_step(trainer.model, INPUTS)
    assert [name for name in kept(session, 2) if name.endswith("loss")] == [
        "micro.0.preference_loss"
    ]
    assert not (session.plan.run / "steps/000001").exists()


def test_models_without_log_probs_are_said_once_and_the_loss_is_kept(sessions: Any) -> None:
    session = sessions()
    trainer = hooked(session, DPOTrainer(Model(-1.0, fused=False), Model(-2.0, fused=False)))
    for step in (0, 1):
        trainer.state.global_step = step
        trainer.training_step(trainer.model, INPUTS)
    assert "micro.0.preference_loss" in kept(session, 2)
    log = (session.plan.run / "capture.log").read_text()
    assert log.count("give no log_probs") == 1


def test_what_a_capture_cannot_do_goes_to_the_log_and_training_goes_on(
    sessions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions()
    trainer = hooked(session, DPOTrainer(Model(-1.0), Model(-2.0)))
    broken = {**INPUTS, "ref_chosen_logps": None, "ref_rejected_logps": None}
    assert trainer.training_step(trainer.model, broken).item() == -6.0
    monkeypatch.setattr(trl_dpo, "_look_at_passes", lambda *_: 1 / 0)
    assert trainer.training_step(trainer.model, INPUTS).item() == -6.0
    log = (session.plan.run / "capture.log").read_text()
    assert "DPOTrainer.compute_loss" in log and "ZeroDivisionError" in log
    assert not trainer.model._forward_hooks


def test_a_loss_that_fails_leaves_no_hook_behind_the_next_one(sessions: Any) -> None:
    session = sessions()
    trainer = hooked(session, DPOTrainer(Model(-1.0), Model(-2.0)))
    trainer.error = ValueError("images do not match")
    with pytest.raises(ValueError, match="images"):
        trainer.training_step(trainer.model, INPUTS)
    trainer.error = None
    trainer.training_step(trainer.model, INPUTS)
    assert not trainer.model._forward_hooks
