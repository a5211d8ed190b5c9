"""Policy, value and preference losses against closed forms, with their gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the objective functions need torch")

import torch

from align.objective import dapo, dpo, mindspeed_rl
from align.objective.aggregate import LossAggregation
from align.objective.errors import ObjectiveError
from align.objective.policy_loss import (
    Clip,
    PolicyLoss,
    clipped_surrogate,
    gspo,
    reduce_policy_loss,
)
from align.objective.value_loss import clipped_value_loss

FREE = Clip(low=0.2, high=0.2, dual=None)


def _one(log_ratio: float, advantage: float, clip: Clip) -> tuple[PolicyLoss, float]:
    """Give loss and gradient of a single token."""
    new = torch.tensor([[log_ratio - 1.0]], dtype=torch.float64, requires_grad=True)
    old, weight = torch.full_like(new, -1.0), torch.full_like(new, advantage)
    tokens = clipped_surrogate(new, old.detach(), weight.detach(), clip)
    loss = reduce_policy_loss(tokens, torch.ones(1, 1), LossAggregation.TOKEN_MEAN)
    return loss, torch.autograd.grad(loss.loss, new)[0].item()


@given(st.floats(-3, 3), st.floats(-5, 5), st.floats(0, 0.9), st.floats(0, 2), st.floats(1.01, 9))
def test_a_token_has_the_loss_of_the_papers(
    log_ratio: float, advantage: float, low: float, high: float, dual: float
) -> None:
    ratio = math.exp(log_ratio)
    surrogate = min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)
    loss, _ = _one(log_ratio, advantage, Clip(low, high, None))
    assert loss.loss.item() == pytest.approx(-surrogate, rel=1e-9, abs=1e-12)
    bounded = max(surrogate, dual * advantage) if advantage < 0 else surrogate
    loss, _ = _one(log_ratio, advantage, Clip(low, high, dual))
    assert loss.loss.item() == pytest.approx(-bounded, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped", "dual_clipped"),
    [
        (1.0, 2.0, 0, 0),
        (1.5, 2.0, 1, 0),  # would gain by leaving the region: cut
        (0.5, 2.0, 0, 0),  # already worse: free
        (0.5, -2.0, 1, 0),
        (1.5, -2.0, 0, 0),
        (4.0, -2.0, 0, 1),  # beyond the dual clip of 3
        (4.0, 2.0, 1, 0),
    ],
)
def test_a_cut_token_has_no_gradient_and_is_counted(
    ratio: float, advantage: float, clipped: int, dual_clipped: int
) -> None:
    loss, gradient = _one(math.log(ratio), advantage, Clip())
    assert (loss.clip_fraction.item(), loss.dual_clip_fraction.item()) == (clipped, dual_clipped)
    expected = 0.0 if clipped or dual_clipped else -advantage * ratio
    assert gradient == pytest.approx(expected, rel=1e-12)
    assert loss.approx_kl.item() == pytest.approx(-math.log(ratio), rel=1e-12)


def test_the_log_ratio_is_clamped_in_verl_and_free_in_mindspeed_rl() -> None:
    clamped, gradient = _one(25.0, -1.0, FREE)
    assert clamped.loss.item() == pytest.approx(math.exp(20)) and gradient == 0.0
    free, gradient = _one(25.0, -1.0, mindspeed_rl.clip())
    assert free.loss.item() == pytest.approx(math.exp(25)) == gradient


def test_clip_higher_lets_good_tokens_grow_further() -> None:
    higher = Clip(low=0.2, high=0.28)
    assert _one(math.log(1.25), 1.0, higher)[0].clip_fraction.item() == 0
    assert _one(math.log(1.25), 1.0, Clip())[0].clip_fraction.item() == 1


@pytest.mark.parametrize("dual", [1.0, 0.5, float("nan")])
def test_a_dual_clip_not_above_one_is_refused(dual: float) -> None:
    with pytest.raises(ObjectiveError, match="not above 1"):
        Clip(dual=dual)


def _batch(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(3, 5, generator=generator, dtype=torch.float64)
    new = (old + 0.2 * torch.randn(3, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    advantages = torch.randn(3, 1, generator=generator, dtype=torch.float64).expand(3, 5)
    return new, old, advantages, torch.arange(5) < torch.tensor([[5], [2], [1]])


def test_gspo_uses_the_geometric_mean_ratio_of_the_sequence() -> None:
    new, old, advantages, mask = _batch()
    tokens = gspo(new, old, advantages, mask, FREE)
    for row in range(3):
        mean = (new - old)[row][mask[row]].mean().item()
        ratio, advantage = math.exp(mean), advantages[row, 0].item()
        expected = -min(ratio * advantage, max(0.8, min(1.2, ratio)) * advantage)
        assert tokens.losses[row].tolist() == pytest.approx([expected] * 5, rel=1e-12)


def test_gspo_of_one_token_is_the_ordinary_loss() -> None:
    new, old, advantages, _ = _batch(1)
    mask = torch.arange(5) < torch.ones(3, 1)
    mode = LossAggregation.SEQ_MEAN_TOKEN_MEAN
    sequence = reduce_policy_loss(gspo(new, old, advantages, mask, FREE), mask, mode)
    token = reduce_policy_loss(clipped_surrogate(new, old, advantages, FREE), mask, mode)
    assert sequence.loss.item() == pytest.approx(token.loss.item(), rel=1e-12)
    ours, theirs = (torch.autograd.grad(x.loss, new)[0] for x in (sequence, token))
    assert torch.allclose(ours, theirs, rtol=1e-12)


def test_gspo_of_an_empty_response_is_finite_and_weighs_nothing() -> None:
    new, old, advantages, mask = _batch(2)
    mask[1] = False
    tokens = gspo(new, old, advantages, mask, FREE)
    loss = reduce_policy_loss(tokens, mask, LossAggregation.SEQ_MEAN_TOKEN_MEAN).loss
    assert loss.isfinite()
    assert not bool(torch.autograd.grad(loss, new)[0][1].any())


def test_rollout_weights_scale_the_tokens_not_the_metrics() -> None:
    new, old, advantages, mask = _batch(3)
    tokens = clipped_surrogate(new, old, advantages, FREE)
    plain = reduce_policy_loss(tokens, mask, LossAggregation.TOKEN_SUM)
    twice = reduce_policy_loss(
        tokens, mask, LossAggregation.TOKEN_SUM, weights=torch.full_like(new, 2.0)
    )
    assert twice.loss.item() == pytest.approx(2 * plain.loss.item(), rel=1e-12)
    assert twice.clip_fraction == plain.clip_fraction and twice.approx_kl == plain.approx_kl


def test_mindspeed_rl_logs_the_absolute_value_of_the_whole_loss() -> None:
    new, old, advantages, mask = _batch(4)
    entropy = torch.full_like(old, 0.5)
    result = mindspeed_rl.grpo_loss(
        new,
        old,
        old - 0.1,
        advantages,
        mask,
        kl_penalty="kl",
        kl_coefficient=0.5,
        entropy=entropy,
        entropy_coefficient=0.2,
    )
    signed = reduce_policy_loss(
        clipped_surrogate(new, old, advantages, mindspeed_rl.clip()),
        mask,
        LossAggregation.TOKEN_MEAN,
    )
    kl = ((new - old)[mask] + 0.1).mean().item()
    whole = signed.loss.item() + 0.5 * kl - 0.2 * 0.5
    assert result.loss.item() == pytest.approx(whole, rel=1e-9)
    assert result.logged_pg_loss == pytest.approx(abs(whole), rel=1e-9)
    assert result.surrogate.item() == pytest.approx(signed.loss.item(), rel=1e-12)
    negative = mindspeed_rl.dapo_loss(new, old, torch.ones_like(old), mask)
    assert negative.loss.item() < 0 < negative.logged_pg_loss


def test_mindspeed_rl_takes_missing_old_log_probs_as_on_policy() -> None:
    new, _, advantages, mask = _batch(5)
    result = mindspeed_rl.dapo_loss(new, None, advantages, mask)
    assert result.surrogate.item() == pytest.approx(-advantages[mask].mean().item(), rel=1e-9)
    (gradient,) = torch.autograd.grad(result.loss, new)
    assert torch.allclose(gradient[mask], -advantages[mask] / int(mask.sum()))
    assert result.approx_kl.item() == 0.0


def test_mindspeed_rl_dapo_by_rows_is_nan_with_an_empty_response_and_counts_no_clipping() -> None:
    new, old, advantages, mask = _batch(6)
    strict: dict[str, Any] = {"clip_ratio_low": 0.0, "clip_ratio_high": 0.0}
    by_token = mindspeed_rl.dapo_loss(new, old, advantages, mask, **strict)
    by_row = mindspeed_rl.dapo_loss(new, old, advantages, mask, token_level_loss=False, **strict)
    assert by_token.clip_fraction.item() > 0 == by_row.clip_fraction.item()
    mask[2] = False
    assert mindspeed_rl.dapo_loss(new, old, advantages, mask).loss.isfinite()
    assert mindspeed_rl.dapo_loss(new, old, advantages, mask, token_level_loss=False).loss.isnan()


@pytest.mark.parametrize(
    ("prediction", "loss", "gradient"),
    [
        (1.2, 0.5 * 0.8**2, -0.8),  # within the clip: squared error to the return of 2
        (0.2, 0.5 * 1.8**2, -1.8),  # clipped to 0.5, whose error of 1.5 is smaller
        (1.9, 0.5 * 0.5**2, 0.0),  # clipped to 1.5: no reward for overshooting the clip
    ],
)
def test_value_loss_takes_the_worse_of_clipped_and_free(
    prediction: float, loss: float, gradient: float
) -> None:
    predicted = torch.tensor([[prediction]], dtype=torch.float64, requires_grad=True)
    old, returns = torch.full_like(predicted, 1.0), torch.full_like(predicted, 2.0)
    result = clipped_value_loss(
        predicted, old.detach(), returns.detach(), torch.ones(1, 1), cliprange_value=0.5
    )
    assert result.loss.item() == pytest.approx(loss, rel=1e-9)
    assert torch.autograd.grad(result.loss, predicted)[0].item() == pytest.approx(gradient)
    assert result.clip_fraction.item() == (1.0 if gradient == 0.0 else 0.0)


@given(st.floats(-50, 50), st.floats(0.01, 2), st.floats(0, 0.4))
def test_dpo_is_the_smoothed_logistic_loss(margin: float, beta: float, smoothing: float) -> None:
    def softplus(x: float) -> float:
        return max(x, 0.0) + math.log1p(math.exp(-abs(x)))

    agreeing, flipped = softplus(-beta * margin), softplus(beta * margin)
    value = torch.tensor(margin, dtype=torch.float64, requires_grad=True)
    loss = dpo.sigmoid_loss(value, beta=beta, label_smoothing=smoothing)
    expected = (1 - smoothing) * agreeing + smoothing * flipped
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, value)
    share = 1 / (1 + math.exp(beta * margin))
    assert gradient.item() == pytest.approx(beta * (smoothing - share), rel=1e-6, abs=1e-9)
    robust = dpo.robust_loss(value, beta=beta, label_smoothing=smoothing).item()
    expected = ((1 - smoothing) * agreeing - smoothing * flipped) / (1 - 2 * smoothing)
    assert robust == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_dpo_starts_at_log_two_and_reference_free_drops_the_reference() -> None:
    chosen, rejected = torch.tensor([-3.0]), torch.tensor([-5.0])
    same = dpo.preference_margin(chosen, rejected, chosen, rejected)
    assert dpo.sigmoid_loss(same, beta=0.3).item() == pytest.approx(math.log(2))
    assert dpo.preference_margin(chosen, rejected).item() == 2.0
    moved = dpo.preference_margin(chosen, rejected, chosen - 1.0, rejected + 0.5)
    assert moved.item() == 1.5  # chosen gained 1 nat on the reference, rejected lost half of one
    with pytest.raises(ObjectiveError, match="one response of the pair alone"):
        dpo.preference_margin(chosen, rejected, chosen)
    with pytest.raises(ObjectiveError, match="no information"):
        dpo.robust_loss(same, beta=0.3, label_smoothing=0.5)


def test_dpo_sums_the_tokens_that_count() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -4.0], [-1.0, -2.0, -4.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert dpo.sequence_log_probs(log_probs, mask).tolist() == [-3.0, 0.0]


@pytest.mark.parametrize(
    ("length", "verl", "mindspeed"),
    [(1, 0.0, 0.0), (16, 0.0, 0.0), (17, -0.5, -0.5), (20, -2.0, -2.0), (24, -4.0, -2.0)],
)
def test_the_overlong_penalty_falls_through_the_buffer(
    length: int, verl: float, mindspeed: float
) -> None:
    settings: dict[str, Any] = {
        "max_response_length": 20,
        "buffer_length": 4,
        "penalty_factor": 2.0,
    }
    lengths = torch.tensor([length])
    assert dapo.overlong_penalty(lengths, **settings).item() == verl
    assert dapo.overlong_penalty(lengths, bounded=True, **settings).item() == mindspeed


@pytest.mark.parametrize("buffer", [0, -1, 21])
def test_an_overlong_buffer_outside_the_response_is_refused(buffer: int) -> None:
    with pytest.raises(ObjectiveError, match="of at most 20"):
        dapo.overlong_penalty(torch.ones(1), max_response_length=20, buffer_length=buffer)


def test_dynamic_sampling_keeps_groups_that_disagree_and_groups_of_one() -> None:
    metric = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, float("nan"), 1.0])
    groups = torch.tensor([0, 0, 1, 1, 2, 3, 3])
    kept = [True, True, False, False, True]
    assert dapo.has_signal(metric, groups).tolist() == [*kept, True, True]
    assert dapo.has_signal(metric, groups, keep_nan=False).tolist() == [*kept, False, False]
