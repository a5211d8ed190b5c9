"""Recorded advantages are laid beside those recomputed from the recorded scores."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from align.core.finding import Side
from align.core.rung import RungResult, RungStatus
from align.ladder import compare_advantages
from align.rollout.group_advantages import Scaling, group_advantages
from dumps.store.run_data import RunData
from tests.unit.trained_runs import PROMPTS, SCORES, N, trained_run

BY_PROMPT = [i // N for i in range(PROMPTS * N)]
BY_PLACE = [i % N for i in range(PROMPTS * N)]


def grpo(groups: Sequence[int], scores: Sequence[float] = SCORES) -> npt.NDArray[np.float64]:
    """Compute each row's advantage with the standard library."""
    members = {g: [s for s, h in zip(scores, groups, strict=True) if h == g] for g in groups}
    return np.array(
        [
            (s - statistics.mean(members[g])) / (statistics.stdev(members[g]) + 1e-6)
            for s, g in zip(scores, groups, strict=True)
        ]
    )


def ids(result: RungResult) -> list[str]:
    return [finding.id for finding in result.findings]


@pytest.fixture
def right(tmp_path: Path) -> RunData:
    return trained_run(tmp_path / "right", advantages=grpo(BY_PROMPT))


def test_advantages_of_ones_own_scores_are_aligned(tmp_path: Path, right: RunData) -> None:
    order = [5, 3, 11, 0, 1, 2, 4, 6, 7, 8, 9, 10]
    other = trained_run(tmp_path / "b", advantages=grpo(BY_PROMPT), trainer_order=order)
    result = compare_advantages(right, other)
    assert (result.status, ids(result)) == (RungStatus.ALIGNED, [])


def test_wrong_groups_are_named_with_the_rows_they_compare(tmp_path: Path, right: RunData) -> None:
    wrong = trained_run(tmp_path / "b", advantages=grpo(BY_PLACE))
    result = compare_advantages(right, wrong)
    assert (result.status, ids(result)) == (RungStatus.DIVERGED, ["advantage.groups"])
    assert "rows i, i + 4, i + 8" in result.findings[0].title.en
    assert result.findings[0].evidence[0].side is Side.CANDIDATE
    assert ids(compare_advantages(wrong, right)) == ["advantage.groups"]


def test_advantages_no_grouping_explains_are_named_so(tmp_path: Path, right: RunData) -> None:
    bent = trained_run(tmp_path / "b", advantages=grpo(BY_PROMPT) ** 3)
    assert ids(compare_advantages(right, bent)) == ["advantage.recomputed_differs"]


def centred(scores: Sequence[float]) -> npt.NDArray[np.float64]:
    """Subtract from each row's score the mean of its prompt's."""
    return np.array(scores) - np.repeat(np.reshape(scores, (PROMPTS, N)).mean(1), N)


EARLIER = (SCORES[-1], *SCORES[:-1])
OTHERS = {
    "without std": (centred(SCORES), "normalization", "does not divide by the group's std"),
    "population std": (grpo(BY_PROMPT) * np.sqrt(N / (N - 1)), "normalization", "Bessel"),
    "one std": (
        centred(SCORES) / (statistics.stdev(SCORES) + 1e-6),
        "normalization",
        "std of the whole batch",
    ),
    "whole batch": (grpo([0] * PROMPTS * N), "groups", "the whole batch"),
    "one row late": (grpo([*BY_PROMPT[-1:], *BY_PROMPT[:-1]]), "groups", "begin 1 row late"),
    "row before": (grpo(BY_PROMPT, EARLIER), "scores_moved", "the scores of 1 row before"),
    "another row's": (grpo(BY_PROMPT)[[2, 0, 1, *range(3, 12)]], "permuted", "of another"),
    "times 1.5": (grpo(BY_PROMPT) * 1.5, "scaled", "by 1.5"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_formula_is_named_by_what_it_computes(
    tmp_path: Path, right: RunData, name: str
) -> None:
    advantages, kind, words = OTHERS[name]
    (finding,) = compare_advantages(
        right, trained_run(tmp_path / "b", advantages=advantages)
    ).findings
    assert finding.id == f"advantage.{kind}"
    assert words in finding.title.en


def test_permuted_scores_with_right_advantages_are_not_blamed_here(
    tmp_path: Path, right: RunData
) -> None:
    moved = (*SCORES[1:], *SCORES[:1])
    other = trained_run(tmp_path / "b", trained=moved, advantages=grpo(BY_PROMPT, moved))
    assert compare_advantages(right, other).status is RungStatus.ALIGNED


def test_bfloat16_advantages_are_no_difference(tmp_path: Path, right: RunData) -> None:
    bits = grpo(BY_PROMPT).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    rounded = trained_run(tmp_path / "b", advantages=bits.view(np.float32).astype(np.float64))
    assert compare_advantages(right, rounded).status is RungStatus.ALIGNED


def test_both_runs_wrong_alike_are_not_blamed(tmp_path: Path) -> None:
    runs = [trained_run(tmp_path / name, advantages=grpo(BY_PLACE)) for name in "ab"]
    result = compare_advantages(*runs)
    assert (result.status, ids(result)) == (RungStatus.UNDECIDED, [])


@pytest.mark.parametrize("estimator", ["gae", "rloo"])
def test_another_estimator_is_not_judged(tmp_path: Path, right: RunData, estimator: str) -> None:
    other = trained_run(tmp_path / "b", advantages=grpo(BY_PLACE), estimator=estimator)
    result = compare_advantages(right, other)
    assert (result.status, result.missing[0].side) == (RungStatus.MISSING, "candidate")


def test_a_run_without_advantages_is_said_to_lack_them(tmp_path: Path, right: RunData) -> None:
    result = compare_advantages(trained_run(tmp_path / "b"), right)
    assert (result.status, result.missing[0].side) == (RungStatus.MISSING, "reference")


def test_degenerate_groups_are_verls() -> None:
    groups = np.array([0, 0, 1, 2, 2, 2])
    scores = np.array([0.5, 0.5, 3.0, 0.9, 0.9 + 1e-8, 0.9])
    advantages = group_advantages(scores, groups, Scaling(by_std=True))
    np.testing.assert_allclose(advantages[:2], 0.0)  # equal scores
    np.testing.assert_allclose(advantages[2], 3.0, rtol=1e-5)  # a group of one keeps its score
    assert np.isnan(advantages[3:]).all()  # rounding over epsilon is not judged
