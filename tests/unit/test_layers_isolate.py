"""Modules run alone on recorded inputs: the faulty one is named, the others are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs modules")
pytest.importorskip("transformers", reason="needs the extra torch")

import numpy as np
import torch
from click.testing import CliRunner, Result
from torch import nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

from align.cli.layers import command
from align.layers.isolate import isolate
from align.layers.isolate_inputs import whole_sequences
from align.weights.load_model import load_model
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.layer_runs import batch, loss_of, tiny_qwen2
from tests.unit.test_tensor_capture import packed_pass

NORM = "model.layers.0.input_layernorm"
UP = "model.layers.1.mlp.up_proj"
LAYER = "model.layers.1"
ATTENTION = f"{LAYER}.self_attn"
PATTERNS = (NORM, "model.layers.1.self_attn*", "model.layers.1.mlp*", "model.embed_tokens")
DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module", params=DTYPES)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp(request.param)
    model = tiny_qwen2().to(getattr(torch, request.param))
    model.save_pretrained(place / "model")
    run = place / "run"
    with sketched_step(model, run, 1, FailureLog(run, "test"), whole=PATTERNS):
        loss_of(model, batch()).backward()
    return run, place / "model", request.param


def edited(folders: Any, tmp_path: Path, change: Any) -> Path:
    """Save the model with one of its tensors or settings changed."""
    model = load_model(folders[1])
    with torch.no_grad():
        change(model)
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    return tmp_path / "model"


class Another(Qwen2Attention):
    """Gives the attention's weights alone."""

    def forward(  # type: ignore[override]
        self, hidden_states: Any, position_embeddings: Any, attention_mask: Any, **kwargs: Any
    ) -> Any:
        return super().forward(hidden_states, position_embeddings, attention_mask, **kwargs)[1]


def isolated(run: Path, model: Path, *options: str) -> Result:
    return CliRunner().invoke(command, ["isolate", str(run), str(model), *options])


def named(result: Result) -> set[tuple[str, str]]:
    modules = json.loads(result.stdout)["modules"]
    return {(one["module"], one["phase"]) for one in modules if one["beyond"] and not one["inside"]}


def test_the_same_model_is_within_its_floors_both_ways(folders: Any) -> None:
    run, model, dtype = folders
    result = isolated(run, model, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, named(result)) == (0, set())
    assert {(one["dtype"], one["rows"]) for one in document["modules"]} == {(dtype, 34)}
    ran = {(one["module"], one["phase"]) for one in document["modules"]}
    assert {(name, way) for name in (NORM, UP) for way in ("forward", "backward")} <= ran


def test_a_changed_epsilon_is_named_and_nothing_else(folders: Any, tmp_path: Path) -> None:
    model = edited(folders, tmp_path, lambda model: None)
    place = model / "config.json"
    config = json.loads(place.read_text(encoding="utf-8"))
    place.write_text(json.dumps({**config, "rms_norm_eps": 1e-3}), encoding="utf-8")
    result = isolated(folders[0], model, "--json")
    assert (result.exit_code, named(result)) == (1, {(NORM, "forward")})
    assert "epsilon" in isolated(folders[0], model).stdout


def test_a_scaled_weight_is_named_and_the_module_around_it_is_not(
    folders: Any, tmp_path: Path
) -> None:
    def change(model: Any) -> None:
        model.get_submodule(UP).weight *= 1.05

    result = isolated(folders[0], edited(folders, tmp_path, change), "--json")
    assert (result.exit_code, named(result)) == (1, {(UP, "forward")})


def test_one_element_that_differs_is_where_the_error_is(folders: Any, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        model.get_submodule(UP).weight[17] *= 2

    result = isolated(folders[0], edited(folders, tmp_path, change), "--json", "--module", UP)
    (found,) = [m for m in json.loads(result.stdout)["modules"] if m["phase"] == "forward"]
    assert found["beyond"]
    assert found["at"][1] == 17


def test_a_device_that_computes_wrongly_does_not_excuse_itself(folders: Any) -> None:
    class Wrong(nn.Linear):
        """Right in float64 alone."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output = super().forward(input)
            return output if output.dtype is torch.float64 else output * 1.5

    model = load_model(folders[1])
    model.get_submodule(UP).__class__ = Wrong
    found = isolate(RunData(discover([folders[0]])), model, patterns=[UP])
    assert {(one.phase, one.is_imprecise) for one in found.beyond} == {
        ("forward", True),
        ("backward", True),
    }


def test_modules_that_cannot_run_alone_are_listed_with_the_reason(folders: Any) -> None:
    model = load_model(folders[1])
    model.get_submodule(ATTENTION).__class__ = Another
    model.get_submodule(NORM).forward = lambda hidden_states, unknown: hidden_states
    found = isolate(RunData(discover([folders[0]])), model)
    why = {other.name: other.why.en for other in found.others}
    assert why == {
        NORM: "its forward takes inputs that are not recorded",
        ATTENTION: "its output is not one tensor of this width",
        "model.embed_tokens": "its input or its output is not recorded as rows of tokens",
    }


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("change", [{"scaling": 1.05}, {"theta": 500.0}])
def test_attention_that_differs_is_named_and_its_projections_are_not(
    folders: Any, attention: str, change: dict[str, float]
) -> None:
    run = RunData(discover([folders[0]]))
    model: Any = load_model(folders[1], attention=attention)
    clean = isolate(run, model)
    assert {(ATTENTION, "forward"), (ATTENTION, "backward")} <= {
        (one.name, one.phase) for one in clean.modules
    }
    assert clean.beyond == ()
    if "scaling" in change:
        model.get_submodule(ATTENTION).scaling *= change["scaling"]
    else:
        rotary = model.get_submodule("model.rotary_emb")
        rotary.inv_freq = rotary.inv_freq * 1.5
    assert {one.name for one in isolate(run, model).beyond} == {ATTENTION}


def test_packed_sequences_do_not_see_one_another(tmp_path: Path) -> None:
    model = tiny_qwen2()
    log = FailureLog(tmp_path, "test")
    with sketched_step(model, tmp_path / "run", 1, log, whole=(f"{LAYER}*",)):
        packed_pass(model)
    found = isolate(RunData(discover([tmp_path / "run"])), model)
    assert {LAYER, ATTENTION} <= {one.name for one in found.modules}
    assert found.beyond == ()


def test_a_sequence_of_which_tokens_are_missing_is_not_run() -> None:
    keys, places, sequences = np.arange(5), np.array([0, 1, 3, 1, 0]), np.array([1, 1, 1, 2, 2])
    tokens = np.stack([keys, keys * 0, places, keys * 0, sequences])
    assert whole_sequences(tokens) is None
    rows = whole_sequences(tokens[:, [1, 0, 3, 4]])
    assert rows is not None and [part.tolist() for part in rows] == [[1, 0], [3, 2]]


def test_nothing_recorded_says_how_to_record(folders: Any) -> None:
    result = isolated(folders[0], folders[1], "--module", "nothing")
    assert result.exit_code == 3
    assert "--tensors" in result.stderr


def test_a_folder_without_all_weights_is_refused(folders: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = edited(folders, tmp_path, lambda model: None)
    tensors = load_file(model / "model.safetensors")
    del tensors[f"{UP}.weight"]
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    result = isolated(folders[0], model)
    assert f"lacks weights, {UP}.weight" in str(result.exception)
