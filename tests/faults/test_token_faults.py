"""Planted token faults, trained for two steps: the tokens rung names each, and a repeat nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

from align.core.rung import RungStatus
from align.rollout.token_compare import Chosen, compare_tokens
from align.rollout.tokens_rung import compare
from align.stack.config import load_config
from align.stack.faults.registry import faults
from align.stack.pipeline import Pipeline
from align.stack.train import train
from align.stack.zoo import BASE
from dumps.store.discover import discover
from dumps.store.run_data import RunData

STEPS = ("trainer.total_training_steps=2",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a reference run; its warm-up serves every candidate."""
    folder = tmp_path_factory.mktemp("token_faults")
    trained(folder, "reference", Pipeline())
    return folder


def trained(folder: Path, name: str, pipeline: Pipeline) -> RunData:
    out = folder / name
    if not out.exists():
        config = load_config(None, (*BASE, *STEPS))
        train(config, out, pipeline, warmup_cache=folder / "warmup")
    return RunData(discover([out]))


@pytest.mark.parametrize(
    "name",
    ["eos_stripped", "retokenised", "left_pad_positions", "mask_off_by_one", "copy_read_too_early"],
)
def test_a_planted_fault_is_named_and_nothing_else(folder: Path, name: str) -> None:
    fault = faults()[name]
    assert fault.change is not None
    candidate = trained(folder, name, fault.change(Pipeline()))
    result = compare(trained(folder, "reference", Pipeline()), candidate)
    assert [finding.id for finding in result.findings] == [fault.finding_id]
    assert result.status is RungStatus.DIVERGED


@pytest.mark.parametrize("name", ["eos_stripped", "retokenised", "mask_off_by_one"])
def test_a_comparison_of_the_runs_row_by_row_names_it_first(folder: Path, name: str) -> None:
    fault = faults()[name]
    assert fault.change is not None
    candidate = trained(folder, name, fault.change(Pipeline()))
    reference = trained(folder, "reference", Pipeline())
    result = compare_tokens(reference, candidate, Chosen())
    assert result.findings[0].id == fault.finding_id
    again = compare_tokens(reference, trained(folder, "repeat", Pipeline()), Chosen())
    assert again.status is RungStatus.ALIGNED
    assert {finding.id for finding in again.findings} <= {"tokens.retokenisation_drift"}


def test_a_repeat_is_aligned_on_every_row(folder: Path) -> None:
    repeat = trained(folder, "repeat", Pipeline())
    result = compare(trained(folder, "reference", Pipeline()), repeat)
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
