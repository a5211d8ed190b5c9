"""A step's sketches in any training loop: nothing waits for the device, nothing is left behind."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch
from click.testing import CliRunner
from torch import Tensor, nn

from align.cli.capture import command
from dumps.capture.device import start_copy
from dumps.capture.failures import FailureLog
from dumps.capture.plan import CapturePlan, What, read_plan
from dumps.capture.sketch import sums
from dumps.capture.step_sketches import Part, StepSketches
from dumps.readers import sketches as reader
from dumps.readers.reader import no_progress
from dumps.store.tensor_records import Phase, TensorRecord


class Model(nn.Module):
    """Called with input_ids, as a language model is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.layer = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, 32)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(input_ids)))


def trained(folder: Path, device: str) -> tuple[Model, list[Part]]:
    """Sketch a step of two micro-batches and one update, and the weights given away after it."""
    torch.manual_seed(3)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    sketches = StepSketches(FailureLog(folder, "test"))
    sketches.begin(model, None)
    for number in range(2):
        ids = (torch.arange(10, device=device) + number)[None]
        output = model(ids, torch.arange(10, device=device)[None])
        output.square().mean().backward()
    after = sketches.update(model, optimizer)
    optimizer.step()
    after()
    sketches.record_sync(model, torch.bfloat16)
    return model, list(sketches.end(1, 0))


def test_nothing_waits_for_the_device_before_the_step_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device every look at a number is an error."""
    monkeypatch.setattr(sums, "full_float32", lambda device: nullcontext())
    monkeypatch.setattr(sums, "is_full_float32", lambda device: True)
    with pytest.raises(RuntimeError, match="meta"):
        torch.ones((), device="meta").item()
    _, parts = trained(tmp_path, "meta")
    assert not (tmp_path / "capture.log").exists()
    phases = {phase for part in parts for _, phase, _ in part.recorder.sums}
    assert phases >= {Phase.FORWARD, Phase.GRADIENT, Phase.UPDATE, Phase.FIRST_MOMENT, Phase.SENT}
    assert {tensor.device.type for part in parts for tensor in part.tensors().values()} == {"meta"}


def records(folder: Path, parts: list[Part]) -> dict[tuple[str, str], TensorRecord]:
    found = {}
    for part in parts:
        for name, write in part.writes(start_copy(part.tensors())()).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
            for record in reader.read(path, no_progress).records:
                found[(record.name, record.phase)] = record
    return found


def test_weights_are_sketched_as_they_are_and_as_the_engine_rounds_them(tmp_path: Path) -> None:
    model, parts = trained(tmp_path, "cpu")
    found = records(tmp_path, parts)
    for name, weight in model.named_parameters():
        own, sent = (found[(name, phase)] for phase in (Phase.PARAMETER, Phase.SENT))
        assert (own.dtype, sent.dtype) == ("float32", "bfloat16")
        assert own.total == pytest.approx(float(weight.detach().sum()), abs=1e-5)
        assert sent.l2 == pytest.approx(float(weight.detach().bfloat16().double().norm()), rel=1e-6)


def test_sketches_are_taken_of_the_first_steps_or_of_those_asked_for(tmp_path: Path) -> None:
    first = CapturePlan(tmp_path, (What.SKETCHES,))
    asked = CapturePlan(tmp_path, (What.SKETCHES,), steps=((10, 11),))
    syncs = CapturePlan(tmp_path, (What.WEIGHTS,))
    steps = range(1, 13)
    assert [step for step in steps if first.sketches_step(step)] == [1, 2, 3]
    assert [step for step in steps if asked.sketches_step(step)] == [10, 11]
    assert [step for step in steps if syncs.sketches_step(step)] == []
    assert [step for step in steps if first.sketches_sync(step)] == [1, 2, 3]
    assert [step for step in steps if syncs.sketches_sync(step)] == list(steps)


def test_a_pattern_selects_modules_to_sketch_and_asks_for_no_statistics(tmp_path: Path) -> None:
    options = ["-o", str(tmp_path), "--what", "sketches", "--modules", "*.mlp", "--plan-only"]
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    plan = read_plan(tmp_path / "capture.json")
    assert (plan.what, plan.modules) == ((What.SKETCHES,), "*.mlp")


def test_no_hook_is_left_on_the_model(tmp_path: Path) -> None:
    model, _ = trained(tmp_path, "cpu")

    def hooks(module: Any) -> int:
        return len(module._forward_hooks) + len(module._forward_pre_hooks)

    assert sum(map(hooks, model.modules())) == 0
