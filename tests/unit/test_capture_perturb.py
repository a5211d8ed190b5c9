"""Embeddings moved by one rounding unit: by no more, repeatably, and for the step alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch

from dumps.capture.failures import FailureLog
from dumps.capture.perturb import perturbed
from dumps.capture.step_sketches import StepSketches
from tests.unit.layer_runs import batch, tiny_qwen2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_element_moves_by_one_or_two_last_places(dtype: torch.dtype) -> None:
    values = torch.randn(64, 33, generator=torch.Generator().manual_seed(1)).to(dtype)
    moved = perturbed(values)
    assert moved.dtype == dtype
    last_place = torch.finfo(dtype).eps * 2.0 ** values.double().abs().log2().floor()
    places = (moved.double() - values.double()).abs() / last_place
    assert bool(((places >= 0.5) & (places <= 2)).all())
    up = (moved.abs() > values.abs()).double().mean()
    assert 0.4 < float(up) < 0.6
    assert torch.equal(perturbed(values), moved)


def test_a_model_is_perturbed_in_the_step_and_not_after_it(tmp_path: Path) -> None:
    model, inputs = tiny_qwen2(), batch()
    state = torch.get_rng_state()
    plain = model(**inputs).logits
    sketches = StepSketches(FailureLog(tmp_path, "test"))
    sketches.begin(model, None, perturbs=True)
    during = model(**inputs).logits
    sketches.drop()
    assert torch.equal(model(**inputs).logits, plain)
    assert torch.equal(torch.get_rng_state(), state)
    error = float((during - plain).detach().norm() / plain.detach().norm())
    assert 1e-8 < error < 1e-5
    assert not (tmp_path / "capture.log").exists()
