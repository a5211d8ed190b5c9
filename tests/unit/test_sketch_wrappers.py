"""Real transformers modules give the same sketches however they are wrapped, packed or sharded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch
from torch import Tensor, nn

from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients, record_parameters
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.unit.layer_runs import batch, loss_of, tiny_qwen2
from tests.unit.sharded_steps import WRAPPERS, step

LIMIT = 2e-6  # relative error of an address in float32
TRAINED = (Phase.FORWARD, Phase.GRADIENT, Phase.PARAMETER_GRADIENT)


def step_of(folder: Path) -> CapturedStep:
    log = folder / "capture.log"
    assert not log.exists(), log.read_text(encoding="utf-8")[-3000:]
    data = RunData(discover([folder]))
    assert not [problem for file in data.sketches for problem in file.problems]
    return captured_steps(data)[1]


def worst(own: CapturedStep, other: CapturedStep, phase: str) -> float:
    records, others = own.of(phase), other.of(phase)
    assert records.keys() == others.keys() != set()
    assert {a: r.digest for a, r in records.items()} == {a: r.digest for a, r in others.items()}
    found = {a: difference(record, others[a]).relative for a, record in records.items()}
    name = max(found, key=found.__getitem__)
    print(f"{phase}: {len(found)} addresses, worst {found[name]:.2g} at {name[0]}")
    return found[name]


def sketched(folder: Path, model: Any, loss: Callable[[Any], Tensor]) -> CapturedStep:
    with sketched_step(model, folder, 1, FailureLog(folder, "test")) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER)
        loss(model).backward()
        record_gradients(recorder, model)
    return step_of(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> CapturedStep:
    folder = tmp_path_factory.mktemp("plain")
    return sketched(folder, tiny_qwen2(), lambda model: loss_of(model, batch()))


def packed() -> dict[str, Tensor]:
    """Return the rows without padding, one after the other."""
    inputs = batch()
    mask = inputs.pop("attention_mask").bool()
    return {name: tensor[mask][None] for name, tensor in inputs.items()}


def packed_loss(model: Any) -> Tensor:
    inputs = packed()
    logits = model(**inputs).logits.float()
    return nn.functional.cross_entropy(logits[0], inputs["input_ids"][0])


@pytest.mark.parametrize("phase", TRAINED)
def test_packed_rows_are_the_padded_ones(plain: CapturedStep, tmp_path: Path, phase: str) -> None:
    other = sketched(tmp_path, tiny_qwen2(), packed_loss)
    assert worst(plain, other, phase) <= LIMIT


@pytest.mark.parametrize("phase", TRAINED)
def test_the_order_of_rows_does_not_matter(plain: CapturedStep, tmp_path: Path, phase: str) -> None:
    inputs = {name: tensor[[2, 0, 1]] for name, tensor in batch("left").items()}
    other = sketched(tmp_path, tiny_qwen2(), lambda model: loss_of(model, inputs))
    assert worst(plain, other, phase) <= LIMIT


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("phase", TRAINED)
def test_a_checkpointed_layer_counts_once(
    plain: CapturedStep, tmp_path: Path, phase: str, reentrant: bool
) -> None:
    model = tiny_qwen2().train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    other = sketched(tmp_path, model, lambda model: loss_of(model, batch()))
    assert worst(plain, other, phase) == 0


class Flat(nn.Module):
    """Calls a layer's feed-forward block with packed tokens that have no dimension of rows."""

    def __init__(self, is_flat: bool) -> None:
        super().__init__()
        model = tiny_qwen2().model
        self.embed_tokens, self.norm = model.embed_tokens, model.norm
        self.mlp, self.is_flat = model.layers[0].mlp, is_flat

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        hidden = self.embed_tokens(input_ids)
        return self.norm(self.mlp(hidden))


def test_packed_tokens_need_no_dimension_of_rows(tmp_path: Path) -> None:
    steps = []
    for is_flat in (False, True):
        inputs = {name: tensor[0] if is_flat else tensor for name, tensor in packed().items()}
        loss = lambda model, inputs=inputs: model(**inputs).square().sum()  # noqa: E731
        steps.append(sketched(tmp_path / str(is_flat), Flat(is_flat), loss))
    assert len(steps[0].of(Phase.FORWARD)) == 6 + 1
    for phase in TRAINED:
        assert worst(steps[0], steps[1], phase) == 0


def test_a_compiled_layer_is_recorded_around_and_its_inside_is_named(
    plain: CapturedStep, tmp_path: Path
) -> None:
    model = tiny_qwen2()
    model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")
    other = sketched(tmp_path, model, lambda model: loss_of(model, batch()))
    inside = {name for name, _ in plain.of(Phase.FORWARD) if name.startswith("model.layers.1.")}
    assert inside == {n for n in other.unaligned if n.startswith("model.layers.1.")} != set()
    for phase in (Phase.FORWARD, Phase.GRADIENT):
        own = plain.of(phase)
        rest = {name: record for name, record in own.items() if name[0] not in inside}
        assert other.of(phase).keys() == rest.keys()
        assert all(difference(rest[n], r).relative <= LIMIT for n, r in other.of(phase).items())
    assert worst(plain, other, Phase.PARAMETER_GRADIENT) <= LIMIT


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sketch a step in every wrapper on two processes, and in none on one."""
    root = tmp_path_factory.mktemp("sharded")
    step(WRAPPERS[0], root / WRAPPERS[0])
    script = Path(__file__).with_name("sharded_steps.py")
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(root), str(rank), str(root / "store")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [p.returncode for p in started] == [0, 0], "\n".join(outputs)[-3000:]
    return root


@pytest.mark.parametrize(
    "phase", [*TRAINED, Phase.PARAMETER, Phase.UPDATE, Phase.FIRST_MOMENT, Phase.SECOND_MOMENT]
)
@pytest.mark.parametrize("kind", WRAPPERS[1:])
def test_two_processes_in_a_wrapper_are_one_without(sharded: Path, kind: str, phase: str) -> None:
    own, other = step_of(sharded / WRAPPERS[0]), step_of(sharded / kind)
    # the update divides by the root of a second moment that may be as small as its rounding
    limit = 1e-4 if phase == Phase.UPDATE else 2 * LIMIT if "exp_avg" in phase else LIMIT
    assert worst(own, other, phase) <= limit
