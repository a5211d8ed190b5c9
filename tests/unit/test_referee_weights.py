"""log_probs of a recorded step, computed again from given weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the referee computes with torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from align.core.config_value import (
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.core.errors import RunError
from align.referee.link import Link, LinkVerdict
from align.referee.step_batch import StepBatch
from align.referee.weights_link import Recomputation, even_sample, weights_link
from align.weights.load_model import load_model
from tests.unit.layer_runs import batch, tiny_qwen2

RESPONSE = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a saved model."""
    path = tmp_path_factory.mktemp("model")
    tiny_qwen2().save_pretrained(path)
    return path


def recorded(
    model: Any, temperature: float, side: str = "left", shift: int = 0
) -> dict[str, Tensor]:
    """Record one step as a trainer does in float32, one row at a time and unpadded."""
    inputs = batch(side)
    ids, attention = inputs["input_ids"], inputs["attention_mask"]
    log_probs, mask = torch.zeros(2, len(ids), RESPONSE, dtype=torch.float64)
    for row in range(len(ids)):
        places = attention[row].nonzero().flatten()
        with torch.no_grad():
            logits = model(input_ids=ids[row][places][None]).logits[0] / temperature
        for place, column in enumerate(places.tolist()):
            at = column - (ids.shape[1] - RESPONSE)
            if at >= 0 and place > 0:
                chosen = logits[place - 1].double()
                log_probs[row, at] = chosen[ids[row, column]] - chosen.logsumexp(0)
                mask[row, at] = 1
    return {
        "input_ids": ids.double(),
        "attention_mask": attention.double(),
        "response_mask": mask,
        "old_log_probs": log_probs.roll(shift, 1),
    }


def link(
    tensors: dict[str, Tensor],
    folder: Path,
    config: EffectiveConfig,
    dtype: str = "float64",
    num_rows: int | None = None,
    on_row: Callable[[int], None] = lambda num_rows: None,
) -> Link:
    given = Recomputation(load_model(folder, dtype, "sdpa"), num_rows, on_row)
    return weights_link(StepBatch(1, tensors, None), config, given)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_weights_of_the_step_give_its_log_probs(folder: Path, temperature: float) -> None:
    tensors = recorded(tiny_qwen2(), temperature)
    found = link(tensors, folder, declaring(temperature))
    assert found.verdict is LinkVerdict.AS_DECLARED
    assert found.recorded is not None and found.recorded < 1e-5


@pytest.mark.parametrize(
    ("dtype", "named"),
    [
        (torch.float32, "of float32"),
        (torch.float16, "of float16, TF32 or HF32"),
        (torch.bfloat16, "of bfloat16"),
    ],
)
def test_the_dtype_that_the_run_computed_in_is_read_off_its_errors(
    folder: Path, dtype: torch.dtype, named: str
) -> None:
    found = link(recorded(tiny_qwen2().to(dtype), 1.0), folder, declaring(1.0))
    assert found.verdict is LinkVerdict.AS_DECLARED
    assert found.note is not None and named in found.note.en


def test_a_sample_of_rows_is_spread_evenly_and_said(folder: Path) -> None:
    assert even_sample(10, 2) == [2, 7] and even_sample(4, 9) == [0, 1, 2, 3]
    assert even_sample(5, None) == list(range(5)) and even_sample(512, 1) == [256]
    tensors = {name: t.repeat(4, 1) for name, t in recorded(tiny_qwen2(), 1.0).items()}
    num, seen = len(tensors["input_ids"]), list[int]()
    found = link(tensors, folder, declaring(1.0), num_rows=3, on_row=seen.append)
    assert found.verdict is LinkVerdict.AS_DECLARED and seen == [3, 3, 3]
    assert found.note is not None and f"3 of {num} rows, evenly spread" in found.note.en
    # A row outside the sample is not looked at; one inside it is.
    chosen = even_sample(num, 3)
    for row, verdict in (
        (next(n for n in range(num) if n not in chosen), LinkVerdict.AS_DECLARED),
        (chosen[1], LinkVerdict.DIFFERS),
    ):
        changed = {name: tensor.clone() for name, tensor in tensors.items()}
        changed["old_log_probs"][row] -= 2.0
        assert link(changed, folder, declaring(1.0), num_rows=3).verdict is verdict


def test_float32_tells_the_same_as_float64_with_half_the_memory(folder: Path) -> None:
    tensors = recorded(tiny_qwen2().to(torch.bfloat16), 0.7)
    links = [link(tensors, folder, declaring(0.7), dtype) for dtype in ("float64", "float32")]
    assert {found.verdict for found in links} == {LinkVerdict.AS_DECLARED}
    assert all(f.note is not None and "of bfloat16" in f.note.en for f in links)
    wrong = link(tensors, folder, declaring(1.0), "float32")
    assert wrong.verdict is LinkVerdict.DIFFERS


def test_a_temperature_that_is_not_applied_is_said(folder: Path) -> None:
    found = link(recorded(tiny_qwen2(), 1.0), folder, declaring(0.7))
    assert found.verdict is LinkVerdict.DIFFERS
    assert found.note is not None and "temperature 1" in found.note.en


def test_other_weights_and_a_shift_are_told_apart(folder: Path) -> None:
    model = tiny_qwen2()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(2)
    other = link(recorded(model, 1.0), folder, declaring(1.0))
    assert other.verdict is LinkVerdict.DIFFERS
    assert other.note is not None and "other weights" in other.note.en
    tensors = recorded(tiny_qwen2(), 1.0)
    many = {name: tensor.repeat(3, 1) for name, tensor in tensors.items()}
    many["old_log_probs"] = many["old_log_probs"].roll(1, 1)
    shifted = link(many, folder, declaring(1.0))
    assert shifted.note is not None and "moved by one token" in shifted.note.en


def test_what_is_missing_and_what_is_no_model_are_said(folder: Path, tmp_path: Path) -> None:
    tensors = recorded(tiny_qwen2(), 1.0)
    beyond = {**tensors, "input_ids": tensors["input_ids"] + 1000}
    assert link(beyond, folder, declaring(1.0)).verdict is LinkVerdict.UNKNOWN
    del tensors["input_ids"]
    assert link(tensors, folder, declaring(1.0)).verdict is LinkVerdict.NOT_RECORDED
    with pytest.raises(RunError, match="cannot be loaded"):
        load_model(tmp_path)


def declaring(temperature: float) -> EffectiveConfig:
    """Give the configuration of a run with a temperature."""
    name = "rollout.temperature"
    place = Provenance(ProvenanceKind.OVERRIDE, "overrides.yaml", 1, f"- {name}={temperature}")
    value = EffectiveValue(name, temperature, ConfigValue(name, temperature, place))
    return EffectiveConfig("verl", None, {name: value})


def test_weights_that_lack_a_tensor_are_refused_and_not_drawn_at_random(
    folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(RunError, match=r"lacks weights, model.layers.1.mlp.up_proj.weight"):
        load_model(copy, "float64", "sdpa")
    with pytest.raises(RunError, match="is no folder"):
        load_model(tmp_path / "absent")
