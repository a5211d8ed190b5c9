"""Gradients of biases whose terms cancel are judged by the size of their terms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch
from torch import Tensor, nn

from align.core.rung import RungStatus
from align.layers import backward_rung
from align.layers.all_steps import common_files
from align.layers.captured import captured_steps
from align.layers.measure import difference
from align.layers.step_errors import Chunk, measure
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.unit.layer_runs import batch, loss_of, recorded, tiny_qwen2

KEY = "model.layers.1.self_attn.k_proj"


def without_positions(model: Any) -> None:
    """Leave rotary embedding out: a key's bias then adds the same to all scores of a query, which
    softmax ignores, so that its true gradient is zero."""

    def hook(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> Any:
        cosines, sines = output
        return torch.ones_like(cosines), torch.zeros_like(sines)

    model.model.rotary_emb.register_forward_hook(hook)


def with_gradient(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    def edit(model: Any) -> None:
        without_positions(model)
        model.get_submodule(KEY).bias.register_hook(change)

    return edit


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return recorded(tmp_path_factory.mktemp("reference"), without_positions)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Give the same with another implementation of attention, which rounds otherwise."""
    folder = tmp_path_factory.mktemp("other")
    return recorded(folder, without_positions, attn_implementation="sdpa")


def test_in_float64_the_gradient_is_zero_and_in_float32_rounding_alone(reference: RunData) -> None:
    model = tiny_qwen2(attn_implementation="sdpa").double()  # eager: softmax in float32
    without_positions(model)
    loss_of(model, batch()).backward()
    exact = float(model.get_submodule(KEY).bias.grad.norm())
    step = captured_steps(reference)[1]
    sums, terms = step.of(Phase.PARAMETER_GRADIENT), step.of(Phase.GRADIENT)
    size = terms[KEY, 0].l2
    assert exact < 1e-15 * size
    assert 0 < sums[f"{KEY}.bias", 0].l2 < 1e-6 * size


def test_rounding_that_is_all_there_is_of_a_gradient_is_no_finding(
    reference: RunData, other: RunData
) -> None:
    own, its = (captured_steps(run)[1].of(Phase.PARAMETER_GRADIENT) for run in (reference, other))
    assert difference(own[f"{KEY}.bias", 0], its[f"{KEY}.bias", 0]).relative > 0.1
    result = backward_rung.compare(reference, other)
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary.en


@pytest.mark.parametrize("share", [1e-4, 1.0])
def test_an_error_as_large_as_a_share_of_the_terms_is_found(
    reference: RunData, tmp_path: Path, share: float
) -> None:
    size = captured_steps(reference)[1].of(Phase.GRADIENT)[KEY, 0].l2
    wrong = with_gradient(lambda gradient: gradient + share * size / len(gradient) ** 0.5)
    (finding,) = backward_rung.compare(reference, recorded(tmp_path, wrong)).findings
    assert f"1 of 39 parameters differ, first {KEY}.bias" in finding.title.en


@pytest.mark.parametrize("name", ["q_proj", "v_proj"])
def test_a_bias_whose_terms_do_not_cancel_is_judged_as_before(
    reference: RunData, tmp_path: Path, name: str
) -> None:
    place = f"model.layers.1.self_attn.{name}"

    def wrong(model: Any) -> None:
        without_positions(model)
        model.get_submodule(place).bias.register_hook(lambda gradient: gradient * 1.0001)

    (finding,) = backward_rung.compare(reference, recorded(tmp_path, wrong)).findings
    assert f"1 of 39 parameters differ, first {place}.bias" in finding.title.en


def test_comparing_every_step_uses_the_same_limits(reference: RunData, other: RunData) -> None:
    (files,) = common_files(reference, other)
    (errors,) = measure(Chunk((files,))).steps
    floors = dict(zip(errors.keys, errors.floor.tolist(), strict=True))
    steps = captured_steps(reference)[1], captured_steps(other)[1]
    compared = backward_rung.compare_gradients(*steps).parameters.compared
    modelled = [each for each in compared if each.limit.source.startswith("model of rounding")]
    for each in modelled:
        record = each.reference
        floor = floors[record.phase, record.name, record.update]
        assert floor == pytest.approx(each.limit.value, rel=1e-6)
    keys = [each for each in modelled if each.reference.name == f"{KEY}.bias"]
    assert keys and keys[0].limit.value > 1
