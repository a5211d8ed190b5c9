"""Advantages against arithmetic in plain Python, and the algebra they obey."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the objective functions need torch")

import torch

from align.objective import mindspeed_rl
from align.objective.advantages import group_by_uid, grpo, rloo
from align.objective.errors import ObjectiveError
from align.objective.gae import gae, penalise_kl

SCORES = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=2, max_size=8)


def _f64(values):
    return torch.tensor(values, dtype=torch.float64)


def _one_group(function, scores, **settings):
    mask = torch.ones(len(scores), 1, dtype=torch.bool)
    groups = torch.zeros(len(scores), dtype=torch.long)
    return function(_f64(scores), mask, groups, **settings).squeeze(1).tolist()


@given(SCORES)
def test_grpo_is_the_standard_score_of_the_group(scores: list[float]) -> None:
    mean, std = statistics.fmean(scores), statistics.stdev(scores)
    expected = [(score - mean) / (std + 1e-6) for score in scores]
    assert _one_group(grpo, scores) == pytest.approx(expected, abs=1e-9)
    centred = [score - mean for score in scores]
    assert _one_group(grpo, scores, normalise_by_std=False) == pytest.approx(centred, abs=1e-12)


@given(SCORES)
def test_rloo_subtracts_the_mean_of_the_others(scores: list[float]) -> None:
    others = [(sum(scores) - score) / (len(scores) - 1) for score in scores]
    expected = [score - other for score, other in zip(scores, others, strict=True)]
    assert _one_group(rloo, scores) == pytest.approx(expected, abs=1e-12)


@given(SCORES, st.randoms(use_true_random=False), st.integers(-3, 3))
def test_grouped_advantages_ignore_row_order_and_a_shift_of_a_group(
    scores: list[float], random, shift: int
) -> None:
    groups = [i % 2 for i in range(len(scores))]
    order = list(range(len(scores)))
    random.shuffle(order)
    mask = torch.ones(len(scores), 1)
    straight = grpo(_f64(scores), mask, torch.tensor(groups))
    moved = _f64(scores) + shift * torch.tensor(groups)
    shuffled = grpo(moved[order], mask, torch.tensor(groups)[order])
    if min(groups.count(0), groups.count(1)) > 1:
        assert torch.allclose(straight[order], shuffled, atol=1e-9)


def test_degenerate_groups() -> None:
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1]])
    scores, groups = _f64([0.7, 2.0, 2.0, -1.0]), torch.tensor([5, 3, 3, 9])
    raw = 0.7 / (1 + 1e-6)
    expected = [[raw, raw], [0.0, 0.0], [0.0, 0.0], [-1.0 / (1 + 1e-6)] * 2]
    assert torch.allclose(grpo(scores, mask, groups), _f64(expected), rtol=1e-12)
    expected = [[0.7, 0.7], [0.0, 0.0], [0.0, 0.0], [-1.0, -1.0]]
    assert torch.allclose(rloo(scores, mask, groups), _f64(expected), rtol=1e-12)


def test_equal_scores_with_an_inexact_mean_are_blown_up_by_the_epsilon() -> None:
    mask, groups = torch.ones(3, 1), torch.zeros(3, dtype=torch.long)
    narrow = grpo(torch.tensor([0.9, 0.9, 0.9]), mask, groups).abs().max().item()
    assert narrow == pytest.approx(2**-24 / (1e-6 + 7.3e-8), rel=0.01)  # half a last place
    assert grpo(_f64([0.9, 0.9, 0.9]), mask, groups).abs().max().item() < 1e-9


def test_a_nan_score_spoils_its_group_and_no_other() -> None:
    mask = torch.ones(4, 2)
    scores, groups = _f64([float("nan"), 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1])
    for function in (grpo, rloo):
        result = function(scores, mask, groups)
        assert result[:2].isnan().all() and result[2:].isfinite().all()


def test_groups_are_numbered_by_first_appearance() -> None:
    assert group_by_uid(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]
    assert group_by_uid([]).tolist() == []


def test_mindspeed_rl_groups_adjacent_rows_and_verl_equal_uids() -> None:
    scores, mask = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.ones(4, 1)
    adjacent = mindspeed_rl.group_norm_advantages(scores, mask, 2)
    assert torch.allclose(adjacent, grpo(scores, mask, torch.tensor([0, 0, 1, 1])), atol=1e-6)
    interleaved = grpo(scores, mask, torch.tensor([0, 1, 0, 1]))
    assert adjacent.squeeze(1).tolist() == pytest.approx([0.7071, -0.7071, 0, 0], abs=1e-4)
    assert interleaved.squeeze(1).tolist() == pytest.approx([0.7071, 0, -0.7071, 0], abs=1e-4)


def test_mindspeed_rl_computes_in_float64_and_returns_float32() -> None:
    scores = _f64([1e8, 1e8 + 1, 0.0, 1.0])
    result = mindspeed_rl.group_norm_advantages(scores, torch.ones(4, 1), 2)
    assert result.dtype == torch.float32
    assert result.squeeze(1).tolist() == pytest.approx([-0.70711, 0.70711] * 2, abs=1e-4)


def test_mindspeed_rl_makes_a_group_of_one_nan_where_verl_keeps_the_score() -> None:
    scores, mask = torch.tensor([0.5, 2.0]), torch.ones(2, 1)
    assert mindspeed_rl.group_norm_advantages(scores, mask, 1).isnan().all()
    assert grpo(scores, mask, torch.arange(2)).squeeze(1).tolist() == pytest.approx([0.5, 2.0])


@pytest.mark.parametrize("size", [0, 3, 5])
def test_mindspeed_rl_refuses_broken_groups(size: int) -> None:
    with pytest.raises(ObjectiveError, match="does not divide 4 responses"):
        mindspeed_rl.group_norm_advantages(torch.zeros(4), torch.ones(4, 1), size)


def _trajectory(seed: int, rows: int = 3, width: int = 6):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    values = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return rewards, values


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_gae_with_lambda_one_is_the_discounted_return_minus_the_value(gamma: float) -> None:
    rewards, values = _trajectory(1)
    advantages, returns = gae(rewards, values, torch.ones(3, 6), gamma=gamma, lam=1.0)
    for row in range(3):
        for t in range(6):
            discounted = math.fsum(gamma ** (k - t) * rewards[row, k].item() for k in range(t, 6))
            assert returns[row, t].item() == pytest.approx(discounted, rel=1e-12)
            expected = discounted - values[row, t].item()
            assert advantages[row, t].item() == pytest.approx(expected, rel=1e-9)


def test_gae_with_lambda_zero_is_the_one_step_error() -> None:
    rewards, values = _trajectory(2)
    advantages, _ = gae(rewards, values, torch.ones(3, 6), gamma=0.9, lam=0.0)
    after = torch.cat([values[:, 1:], torch.zeros(3, 1, dtype=torch.float64)], 1)
    assert torch.allclose(advantages, rewards + 0.9 * after - values)


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 3))
def test_masked_positions_are_stepped_over_as_if_cut_out(counts: list[bool], seed: int) -> None:
    rewards, values = _trajectory(seed, rows=1)
    mask = torch.tensor([counts])
    ours, _ = gae(rewards, values, mask, gamma=0.9, lam=0.7)
    if not any(counts):
        assert not bool(ours.any())
        return
    kept = torch.tensor(counts)
    whole = torch.ones(1, int(kept.sum()))
    short, _ = gae(rewards[:, kept], values[:, kept], whole, gamma=0.9, lam=0.7)
    assert torch.allclose(ours[:, kept], short, rtol=1e-12)


def test_mindspeed_rl_differs_only_where_padding_carries_values() -> None:
    rewards, values = _trajectory(4)
    mask = (torch.arange(6) < torch.tensor([[6], [4], [2]])).double()
    ours = mindspeed_rl.gae(rewards * mask, values * mask, gamma=0.9, lam=0.7)[0]
    theirs = gae(rewards * mask, values * mask, mask, gamma=0.9, lam=0.7)[0]
    assert torch.allclose(ours * mask, theirs * mask, rtol=1e-12)
    ours = mindspeed_rl.gae(rewards * mask, values, gamma=0.9, lam=0.7)[0]
    theirs = gae(rewards * mask, values, mask, gamma=0.9, lam=0.7)[0]
    assert torch.allclose(ours[0], theirs[0], rtol=1e-12)
    assert not torch.allclose(ours[1, :4], theirs[1, :4])


def test_mindspeed_rl_whitens_a_single_token_to_zero() -> None:
    mask = torch.tensor([[1, 0]])
    assert mindspeed_rl.whiten(torch.tensor([[3.0, 9.0]]), mask)[0, 0].item() == 0.0


def test_no_tokens_at_all_give_empty_advantages() -> None:
    nothing = torch.zeros(2, 0)
    for result in (*gae(nothing, nothing, nothing, gamma=1.0, lam=1.0),):
        assert result.shape == (2, 0)


def test_a_nan_value_reaches_every_earlier_token_and_no_later_one() -> None:
    rewards, values = _trajectory(5, rows=2)
    values[0, 3] = float("nan")
    advantages, _ = gae(rewards, values, torch.ones(2, 6), gamma=1.0, lam=0.95)
    assert advantages[0].isnan().tolist() == [True] * 4 + [False] * 2
    assert advantages[1].isfinite().all()


def test_kl_is_taken_from_counting_tokens_alone() -> None:
    scores, kl = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.5, 2.0, 9.0]])
    mask = torch.tensor([[True, True, False]])
    assert penalise_kl(scores, kl, mask, 0.1).tolist() == [pytest.approx([-0.05, 0.8, 0.0])]
