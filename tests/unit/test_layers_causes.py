"""Shapes of large errors: dtypes, factors of whole numbers, sums over too few ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch

from align.core.finding import Severity
from align.core.rung import RungStatus
from align.layers.backward_rung import compare as compare_gradients
from align.layers.forward_rung import compare
from dumps.store.run_data import RunData
from tests.unit.layer_runs import Edit, recorded

LAYER = "model.layers.1"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Give the untouched model's run."""
    return recorded(tmp_path_factory.mktemp("reference"))


def one_of_two_ranks(model: Any) -> None:
    """Leave the second rank's half of the features out of a row-parallel product."""

    proj = model.model.layers[1].self_attn.o_proj
    weight, half = proj.weight, proj.weight.shape[1] // 2
    proj.register_forward_hook(
        lambda module, inputs, output: inputs[0][..., :half] @ weight[:, :half].T
    )


def reduced_twice(model: Any) -> None:
    proj = model.model.layers[1].mlp.down_proj
    proj.register_forward_hook(lambda module, inputs, output: 2 * output)


def module_in_bfloat16(model: Any) -> None:
    mlp = model.model.layers[1].mlp.to(torch.bfloat16)
    forward = mlp.forward
    mlp.forward = lambda x: forward(x.to(torch.bfloat16)).to(x.dtype)


@pytest.mark.parametrize(
    ("edit", "module", "said"),
    [
        (one_of_two_ranks, f"{LAYER}.self_attn.o_proj", "one of 2 ranks' part of the sum"),
        (reduced_twice, f"{LAYER}.mlp.down_proj", "averaged on one side, or done twice"),
        (module_in_bfloat16, f"{LAYER}.mlp.gate_proj", "different dtypes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_cause_of_a_large_error_is_recognised(
    reference: RunData, tmp_path: Path, edit: Edit, module: str, said: str
) -> None:
    (finding,) = compare(reference, recorded(tmp_path, edit)).findings
    assert f"first at {module}, " in finding.title.en
    assert said in finding.why.en


def test_a_run_in_another_dtype_is_said_once_and_no_module_is_blamed(
    reference: RunData, tmp_path: Path
) -> None:
    candidate = recorded(tmp_path, dtype=torch.bfloat16)
    result = compare(reference, candidate)
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("forward.dtype", Severity.WARNING)
    assert "float32 in the reference and bfloat16 in the candidate" in finding.title.en
    gradients = compare_gradients(reference, candidate)
    assert (gradients.status, gradients.findings) == (RungStatus.ALIGNED, ())


def test_a_run_in_float64_is_no_finding(reference: RunData, tmp_path: Path) -> None:
    result = compare(reference, recorded(tmp_path, dtype=torch.float64))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
