"""What a capture of Megatron-core leaves as it is, and the weights it gives to an engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("transformers", reason="the other side is a transformers model")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
from transformers import AutoModelForCausalLM

from align.core.finding import Side
from align.core.rung import RungStatus
from align.layers import weight_sync_rung
from tests.frameworks.megatron.cases import CASES, DISTURBED, Case
from tests.frameworks.megatron.sketched import record_engine, run_of, step_of
from tests.frameworks.megatron.test_layout_parity import convert


def apart(folder: Path, world: int) -> set[str]:
    """Return what training with sketches changed in any bit, on any rank."""
    found = set()
    for rank in range(world):
        seen = torch.load(folder / f"seen_{rank}.pt")
        assert seen["plain"].keys() == seen["watched"].keys()
        same = {name: torch.equal(value, seen["watched"][name])
                for name, value in seen["plain"].items()}  # fmt: skip
        found |= {name for name, is_same in same.items() if not is_same}
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_losses_gradients_and_random_state_are_the_same_bits_with_hooks_and_without(
    trained: Path, case: Case
) -> None:
    assert not apart(trained / case.label, case.world)


def test_a_weight_that_moves_by_one_rounding_between_both_trainings_shows(trained: Path) -> None:
    found = apart(trained / DISTURBED.label, DISTURBED.world)
    assert "loss 0" in found and len(found) > 10


@pytest.fixture(scope="module")
def synchronised(trained: Path) -> Path:
    """Give every run of Megatron an engine: transformers with its weights, converted back."""
    for case in CASES:
        folder, source = trained / case.label, trained / case.name
        config = f"--config={source / 'config.json'}"
        back = convert(folder / "updated" / "release", folder / "engine", "--to=hf", config)
        for step, weights in ((1, source), (2, back)):
            record_engine(AutoModelForCausalLM.from_pretrained(weights), folder, step)
    return trained


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_an_engine_with_the_converted_weights_is_in_sync_with_megatrons_shards(
    synchronised: Path, case: Case
) -> None:
    runs = run_of(synchronised / case.reference), run_of(synchronised / case.label)
    result = weight_sync_rung.compare(*runs)
    assert not [(each.id, each.title.en) for each in result.findings]
    assert result.status is RungStatus.ALIGNED, result.summary.en
    assert len(step_of(synchronised / case.label, 2).of("parameter")) > 30


@pytest.mark.parametrize("case", [CASES[4], CASES[7]], ids=lambda case: case.label)
def test_an_engine_that_missed_megatrons_update_is_stale(
    synchronised: Path, tmp_path: Path, case: Case
) -> None:
    late = tmp_path / "late"
    shutil.copytree(synchronised / case.label, late)
    record_engine(AutoModelForCausalLM.from_pretrained(synchronised / case.name), late, 2)
    result = weight_sync_rung.compare(run_of(synchronised / case.reference), run_of(late))
    (finding,) = result.findings
    assert finding.id == "weight_sync.stale" and Side.CANDIDATE.value in finding.title.en
