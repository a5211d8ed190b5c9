"""Log_probs of the same tokens: rounded, of another reference model, moved before any update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="recorded tensors are safetensors: install [torch]")
from safetensors.numpy import load_file, save_file

pytest.importorskip("torch", reason="the referee computes with torch")

from align.core.finding import Severity
from align.layers.temperature import temperature_finding
from align.referee.loss_rung import compare
from align.rollout.trainer_pair import trainer_pair
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.updated_runs import Tokens, tokens, updated_run


def narrow(values: Any) -> Any:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def both(
    tmp_path: Path, candidate: Tokens, reference: Tokens | None = None
) -> tuple[RunData, RunData]:
    own = updated_run(tmp_path / "a", given=reference or tokens())
    return own, updated_run(tmp_path / "b", given=candidate)


def test_log_probs_rounded_on_one_side_are_named_as_a_warning(tmp_path: Path) -> None:
    found = temperature_finding(*both(tmp_path, replace(tokens(), old=narrow(tokens().old))), 1)
    assert found is not None
    assert (found.id, found.severity) == ("forward.log_probs", Severity.WARNING)
    assert "the candidate's log_probs are rounded to bfloat16" in found.title.en


@pytest.mark.parametrize(("shift", "severity"), [(0.02, Severity.ERROR), (1e-3, Severity.WARNING)])
def test_another_reference_model_is_named_where_the_policies_agree(
    tmp_path: Path, shift: float, severity: Severity
) -> None:
    other = replace(tokens(), ref=tokens().ref + np.float32(shift))
    found = temperature_finding(*both(tmp_path, other), 1)
    assert found is not None
    assert (found.id, found.severity) == ("forward.ref_log_prob", severity)


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3])
def test_two_devices_rounding_of_policy_and_reference_alike_is_no_finding(
    tmp_path: Path, noise: float
) -> None:
    draw, own = np.random.default_rng(4), tokens()
    old, ref = (v + np.float32(noise) * draw.standard_normal(v.shape) for v in (own.old, own.ref))
    other = replace(own, old=old.astype(np.float32), ref=ref.astype(np.float32))
    assert temperature_finding(*both(tmp_path, other), 1) is None


@pytest.mark.parametrize(("moved", "severity"), [(0.05, Severity.ERROR), (2e-3, Severity.WARNING)])
def test_log_probs_that_move_before_any_update_are_named_on_their_side(
    tmp_path: Path, moved: float, severity: Severity
) -> None:
    own = tokens(on_policy=True)
    other = replace(own, new=own.old + np.float32(moved))
    runs = both(tmp_path, other, own)
    (found,) = compare(*runs).findings
    assert (found.id, found.severity) == ("loss.training_pass", severity)
    assert "dropout" in found.why.en and "the candidate's log_probs move" in found.title.en


@pytest.mark.parametrize("noise", [0.0, 3e-3])
def test_passes_that_differ_alike_on_both_sides_are_no_finding(
    tmp_path: Path, noise: float
) -> None:
    draw, own = np.random.default_rng(5), tokens(on_policy=True)
    given = [
        replace(own, new=(own.old + noise * draw.standard_normal(own.old.shape)).astype(np.float32))
        for _ in range(2)
    ]
    assert compare(*both(tmp_path, given[1], given[0])).findings == ()


def test_a_reference_model_that_follows_the_policy_is_named_at_a_later_step(
    tmp_path: Path,
) -> None:
    both(tmp_path, tokens())
    own = replace(tokens(1), ref=tokens(1).old + np.float32(0.05))
    for folder, given in (("a", own), ("b", replace(own, ref=own.old))):
        updated_run(tmp_path / "later" / folder, given=given)
        later = tmp_path / "later" / folder / "trainer_inputs/1.safetensors"
        later.rename(tmp_path / folder / "trainer_inputs/2.safetensors")
    run, other = (RunData(discover([tmp_path / name])) for name in "ab")
    found = temperature_finding(run, other, 1)
    assert found is not None
    assert (found.id, found.severity) == ("forward.ref_log_prob", Severity.ERROR)
    assert "step 2" in found.title.en
    assert "The candidate's is the policy itself" in found.why.en


def test_rows_are_paired_whatever_id_they_are_padded_with(tmp_path: Path) -> None:
    runs = both(tmp_path, tokens())
    path = tmp_path / "b/trainer_inputs/1.safetensors"
    batch = load_file(path)
    batch["input_ids"][batch["attention_mask"] == 0] = 77
    save_file(batch, path)
    assert trainer_pair(*runs, 1) is not None
