"""Planted faults of model, gradients, optimizer and sync in three steps: each is named first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.ladder import comparisons
from align.stack.clean_pairs import clean_pairs
from align.stack.config import load_config
from align.stack.faults.fault import Fault
from align.stack.faults.registry import faults
from align.stack.pipeline import Pipeline
from align.stack.train import train
from align.stack.zoo import BASE, reference_name
from dumps.store.discover import discover
from dumps.store.run_data import RunData

STEPS = ("trainer.total_training_steps=3",)
RUNGS = (Rung.FORWARD, Rung.BACKWARD, Rung.OPTIMIZER, Rung.WEIGHT_SYNC)
SCHEDULE = "optimizer.lr_schedule"  # needs the logged rates of a whole run
FAULTS = [
    fault for fault in faults().values() if fault.rung in RUNGS and fault.finding_id != SCHEDULE
]
CLEAN = (
    "repeat",
    "float64",
    "float32_split_k",
    "bfloat16_all_reduce",
    "bfloat16_split_k",
    "engine_rounding",
    "padded",
    "micro_batches",
    "sampling_seed",
    "threads",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder whose runs share their starting weights."""
    return tmp_path_factory.mktemp("layer_faults")


def trained(folder: Path, name: str, pipeline: Pipeline, overrides: Sequence[str]) -> RunData:
    out = folder / name
    if not out.exists():
        config = load_config(None, (*BASE, *STEPS, *overrides))
        train(config, out, pipeline, warmup_cache=folder / "warmup")
    return RunData(discover([out]))


def reference(folder: Path, setting: Sequence[str]) -> RunData:
    return trained(folder, reference_name(setting), Pipeline(), setting)


def findings(own: RunData, other: RunData) -> list[Finding]:
    compared = comparisons()
    return [finding for rung in RUNGS for finding in compared[rung](own, other).findings]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named_first(folder: Path, fault: Fault) -> None:
    assert fault.change is not None
    candidate = trained(folder, fault.name, fault.change(Pipeline()), fault.setting)
    found = findings(reference(folder, fault.setting), candidate)
    first = next(finding for finding in found if finding.severity is not Severity.INFO)
    assert (first.id, first.severity) == (fault.finding_id, Severity.ERROR)
    assert fault.module is None or fault.module in first.title.en


@pytest.mark.parametrize("name", CLEAN)
def test_rounding_layout_and_seeds_are_no_finding(folder: Path, name: str) -> None:
    pair = clean_pairs()[name]
    pipeline = Pipeline() if pair.change is None else pair.change(Pipeline())
    candidate = trained(folder, f"clean-{name}", pipeline, (*pair.setting, *pair.overrides))
    assert findings(reference(folder, pair.setting), candidate) == []
