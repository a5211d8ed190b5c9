"""Every estimator against arithmetic in plain Python, on three prompts with ragged responses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from align.rollout.estimators import ESTIMATORS, Settings, Whitening
from align.rollout.group_advantages import Scaling

GROUPS = [0, 1, 0, 0, 1, 2]  # the last prompt has one response
SCORES = [1.0, 0.0, 0.5, 0.0, 3.0, 2.0]
LENGTHS = [4, 2, 1, 3, 3, 2]
WIDTH = 4
MASK = (np.arange(WIDTH) < np.array(LENGTHS)[:, None]).astype(np.float64)
REWARDS = np.zeros((len(SCORES), WIDTH))
REWARDS[range(len(SCORES)), np.array(LENGTHS) - 1] = SCORES


def given(name: str, settings: Settings | None = None) -> np.ndarray:
    """Compute one estimator's advantages, [b, r]."""
    groups = np.array(GROUPS)
    return ESTIMATORS[name].advantages(REWARDS, MASK, groups, settings or Settings())


def members(row: int) -> list[int]:
    return [other for other, group in enumerate(GROUPS) if group == GROUPS[row]]


def mean(row: int) -> float:
    scores = [SCORES[other] for other in members(row)]
    return statistics.fmean(scores) if len(scores) > 1 else 0.0


def rloo(row: int) -> float:
    others = [SCORES[other] for other in members(row) if other != row]
    return SCORES[row] - (statistics.fmean(others) if others else 0.0)


def rloo_vectorized(row: int) -> float:
    return rloo(row) if len(members(row)) > 1 else 0.0


def grpo(row: int) -> float:
    scores = [SCORES[other] for other in members(row)]
    std = statistics.stdev(scores) if len(scores) > 1 else 1.0
    return (SCORES[row] - mean(row)) / (std + 1e-6)


def opo(row: int) -> float:
    tokens = [other for other in members(row) for _ in range(LENGTHS[other])]
    alone = len(members(row)) == 1
    return SCORES[row] - (0.0 if alone else statistics.fmean(SCORES[i] for i in tokens))


def gpg(row: int) -> float:
    return 6 / 4 * (SCORES[row] - mean(row))  # 4 of the 6 score


EXPECTED: dict[str, Callable[[int], float]] = {
    "grpo": grpo,
    "grpo_vectorized": grpo,
    "rloo": rloo,
    "rloo_vectorized": rloo_vectorized,
    "opo": opo,
    "gpg": gpg,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_row_has_the_advantage_of_plain_arithmetic(name: str) -> None:
    rows = np.array([EXPECTED[name](row) for row in range(len(SCORES))])
    np.testing.assert_allclose(given(name), rows[:, None] * MASK, rtol=1e-12, atol=1e-12)


def test_pass_at_k_rewards_the_lead_of_the_best_response_alone() -> None:
    std = statistics.stdev([1.0, 0.5, 0.0]) + 1e-6
    scaled = given("grpo_passk")
    assert scaled[0, 0] == pytest.approx(0.5 / std)
    assert scaled[4, 0] == pytest.approx(3.0 / (statistics.stdev([0.0, 3.0]) + 1e-6))
    assert not scaled[1:4].any()
    assert np.isnan(scaled[5, 0])  # verl refuses a group of one
    plain = given("grpo_passk", Settings(Scaling(by_std=False)))
    assert plain[:5, 0].tolist() == [0.5, 0.0, 0.0, 0.0, 3.0]


def test_a_tie_for_the_best_response_rewards_nobody() -> None:
    rewards, mask = np.array([[2.0], [2.0], [1.0]]), np.ones((3, 1))
    groups = np.zeros(3, np.int64)
    assert not ESTIMATORS["grpo_passk"].advantages(rewards, mask, groups, Settings()).any()


def whitened(tokens: list[float]) -> list[float]:
    centre = statistics.fmean(tokens)
    spread = math.sqrt(statistics.variance(tokens) + 1e-8)
    return [(token - centre) / spread for token in tokens]


def test_reinforce_with_a_baseline_whitens_centred_scores_over_tokens() -> None:
    tokens = [SCORES[row] - mean(row) for row, length in enumerate(LENGTHS) for _ in range(length)]
    found = given("reinforce_plus_plus_baseline")
    assert found[MASK > 0].tolist() == pytest.approx(whitened(tokens), rel=1e-12)
    raw = given("reinforce_plus_plus_baseline", Settings(whitening=Whitening.NONE))
    assert raw[MASK > 0].tolist() == pytest.approx(tokens, rel=1e-12)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_reinforce_discounts_to_the_end_of_the_response_and_whitens(gamma: float) -> None:
    tokens = [
        SCORES[row] * gamma ** (length - 1 - t)
        for row, length in enumerate(LENGTHS)
        for t in range(length)
    ]
    found = given("reinforce_plus_plus", Settings(gamma=gamma))
    assert found[MASK > 0].tolist() == pytest.approx(whitened(tokens), rel=1e-12)
    assert not found[MASK == 0].any()


def test_observations_between_tokens_neither_discount_nor_end_a_return() -> None:
    rewards, mask = np.array([[0.0, 0.0, 0.0, 1.0]]), np.array([[1.0, 0.0, 0.0, 1.0]])
    settings = Settings(gamma=0.5, whitening=Whitening.NONE)
    groups = np.zeros(1, np.int64)
    found = ESTIMATORS["reinforce_plus_plus"].advantages(rewards, mask, groups, settings)
    assert found.tolist() == [[0.5, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_whitened_rounding_is_not_judged(name: str) -> None:
    rewards = np.array([[100.0], [100.0 + 1e-5]])
    function = ESTIMATORS[name].advantages
    found = function(rewards, np.ones((2, 1)), np.zeros(2, np.int64), Settings())
    assert np.isnan(found).all()
    zeros = function(np.zeros((2, 1)), np.ones((2, 1)), np.zeros(2, np.int64), Settings())
    assert not zeros.any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_nan_reward_gives_its_group_no_number(name: str) -> None:
    rewards = REWARDS.copy()
    rewards[2, 0] = np.nan
    found = ESTIMATORS[name].advantages(rewards, MASK, np.array(GROUPS), Settings())
    assert np.isnan(found[2, 0])
