"""Gradient norms: reported against a run's own gradients, and from equal inputs across runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the referee computes with torch")

from align.core.rung import RungResult, RungStatus
from align.referee.gradient_norms import compare_norms, whole_factor
from dumps.store.run_data import RunData
from tests.unit.updated_runs import tokens, updated_run

REPORTED, OWN = "actor/grad_norm", "align/norm_of_gradients"


def compared(reference: RunData, candidate: RunData) -> RungResult:
    result = compare_norms(reference, candidate)
    assert result is not None
    return result


def ids(result: RungResult) -> list[str]:
    return [finding.id for finding in result.findings]


@pytest.fixture
def right(tmp_path: Path) -> RunData:
    return updated_run(tmp_path / "right")


def test_norms_that_are_those_of_the_gradients_are_aligned(tmp_path: Path, right: RunData) -> None:
    near = updated_run(tmp_path / "b", changed={REPORTED: 1.005, OWN: 1.005})
    assert (compared(right, near).status, ids(compared(right, near))) == (RungStatus.ALIGNED, [])


@pytest.mark.parametrize("k", [2.0, 0.5, 8.0])
def test_a_norm_that_counts_gradients_several_times_is_named(
    tmp_path: Path, right: RunData, k: float
) -> None:
    result = compared(right, updated_run(tmp_path / "b", changed={REPORTED: k}))
    assert ids(result) == ["backward.grad_norm"]
    assert f"{k:g} times" in result.findings[0].title.en


def test_a_gradient_of_another_scale_from_equal_inputs_is_named(
    tmp_path: Path, right: RunData
) -> None:
    twice = updated_run(tmp_path / "b", changed={REPORTED: 2.0, OWN: 2.0})
    result = compared(right, twice)
    assert ids(result) == ["backward.scale"]
    assert "2 is its number of micro-batches" in result.findings[0].why.en


@pytest.mark.parametrize("factor", [1.5, 2.2])
def test_no_whole_factor_is_no_finding(tmp_path: Path, right: RunData, factor: float) -> None:
    other = updated_run(tmp_path / "b", changed={REPORTED: factor, OWN: factor})
    assert compared(right, other).status is RungStatus.ALIGNED


def test_gradients_of_other_inputs_are_not_compared(tmp_path: Path, right: RunData) -> None:
    other = updated_run(tmp_path / "b", given=tokens(1), changed={REPORTED: 2.0, OWN: 2.0})
    result = compared(right, other)
    assert (result.status, ids(result)) == (RungStatus.ALIGNED, [])
    assert "no update has equal inputs" in result.summary.en


def test_both_norms_off_alike_are_not_blamed(tmp_path: Path) -> None:
    runs = [updated_run(tmp_path / name, changed={REPORTED: 2.0}) for name in "ab"]
    assert compared(*runs).status is RungStatus.UNDECIDED


def test_runs_without_updates_are_not_judged(tmp_path: Path, right: RunData) -> None:
    assert compare_norms(right, updated_run(tmp_path / "b", with_updates=False)) is None


@pytest.mark.parametrize(
    ("norm", "other", "factor"),
    [
        (2.0, 1.0, 2.0),
        (1.0, 4.0, 0.25),
        (1.0, 1.0, None),
        (0.0, 1.0, None),
        (float("nan"), 1.0, None),
        (float("inf"), 1.0, None),
        (1.0, 3.1, None),
    ],
)
def test_a_whole_factor_is_found_to_two_percent(
    norm: float, other: float, factor: float | None
) -> None:
    assert whole_factor(norm, other) == factor
