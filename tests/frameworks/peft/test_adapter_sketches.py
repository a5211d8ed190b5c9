"""A model with adapters of peft is recorded under the names of the model without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")
pytest.importorskip("peft", reason="peft is not installed")

from peft import LoraConfig, get_peft_model

from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients, record_parameters
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.unit.layer_runs import batch, loss_of, tiny_qwen2

# nothing that is trained comes before these
BELOW = {
    "model.embed_tokens",
    "model.layers.0.input_layernorm",
    "model.layers.0.self_attn.k_proj",
    "model.layers.0.self_attn.v_proj",
}


def recorded(folder: Path, model: Any) -> CapturedStep:
    with sketched_step(model, folder, 1, FailureLog(folder, "test")) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER)
        loss_of(model, batch()).backward()
        record_gradients(recorder, model)
    assert not (folder / "capture.log").exists()
    return captured_steps(RunData(discover([folder])))[1]


def test_an_adapter_of_zeros_leaves_every_name_and_value_as_it_is(tmp_path: Path) -> None:
    own = recorded(tmp_path / "own", tiny_qwen2())
    adapted = get_peft_model(tiny_qwen2(), LoraConfig(r=4, target_modules=["q_proj", "up_proj"]))
    other = recorded(tmp_path / "adapted", adapted)
    for phase in (Phase.FORWARD, Phase.INPUT, Phase.PARAMETER, Phase.GRADIENT):
        records, others = own.of(phase), other.of(phase)
        missing = {name for name, _ in records.keys() - others.keys()}
        assert phase == Phase.GRADIENT or not missing
        assert missing <= BELOW
        further = {name for name, _ in others.keys() - records.keys()}
        assert all("lora_" in name or "base_layer" in name for name in further)
        both = records.keys() & others.keys()
        assert max(difference(records[a], others[a]).relative for a in both) <= 2e-6
    trained = {name for name, _ in other.of(Phase.PARAMETER_GRADIENT)}
    assert len(trained) == 3 * 2 * 2 and all("lora_" in name for name in trained)
