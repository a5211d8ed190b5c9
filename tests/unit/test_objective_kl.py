"""KL estimators against closed forms and against the exact divergence of small distributions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the objective functions need torch")

import torch

from align.objective.errors import ObjectiveError
from align.objective.kl import kl_estimate, low_variance_kl, next_kl_coefficient

NATS = st.floats(-5, 0, allow_subnormal=False)


def _policies():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_(True)
    reference = torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(-1)
    return logits, logits.log_softmax(-1), reference


def _exact_gradient(logits, log_prob, reference):
    exact = (log_prob.exp() * (log_prob - reference)).sum()
    return torch.autograd.grad(exact, logits, retain_graph=True)[0], exact.item()


@given(log_prob=NATS, ref_log_prob=NATS)
def test_the_estimators_have_their_closed_forms(log_prob: float, ref_log_prob: float) -> None:
    d = log_prob - ref_log_prob
    closed = {
        "kl": d,
        "k1": d,
        "abs": abs(d),
        "mse": d * d / 2,
        "k2": d * d / 2,
        "low_var_kl": min(math.exp(-d) - 1 + d, 10.0),
        "k3": min(math.exp(-d) - 1 + d, 10.0),
    }
    ours = torch.tensor(log_prob, dtype=torch.float64)
    theirs = torch.tensor(ref_log_prob, dtype=torch.float64)
    for name, value in closed.items():
        for spelled in (name, name + "+"):
            estimate = kl_estimate(ours, theirs, spelled)
            assert estimate.dtype == torch.float64
            assert estimate.item() == pytest.approx(value, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_expect_the_exact_divergence(name: str) -> None:
    logits, log_prob, reference = _policies()
    _, exact = _exact_gradient(logits, log_prob, reference)
    expected = (log_prob.exp() * kl_estimate(log_prob, reference, name)).sum().item()
    assert expected == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "unbiased"),
    [("k1", False), ("k3", False), ("k2", True), ("k1+", True), ("k3+", True), ("abs+", True)],
)
def test_the_plus_makes_the_expected_gradient_that_of_the_divergence(
    name: str, unbiased: bool
) -> None:
    logits, log_prob, reference = _policies()
    exact, _ = _exact_gradient(logits, log_prob, reference)
    sampled = (log_prob.detach().exp() * kl_estimate(log_prob, reference, name)).sum()
    (gradient,) = torch.autograd.grad(sampled, logits)
    assert torch.allclose(gradient, exact, atol=1e-12) is unbiased


def test_the_clamps_bound_value_and_gradient() -> None:
    ours = torch.tensor([-30.0, 0.0], dtype=torch.float64, requires_grad=True)
    theirs = torch.tensor([0.0, -30.0], dtype=torch.float64)
    estimate = kl_estimate(ours, theirs, "k3")
    assert estimate.tolist() == pytest.approx([10.0, 10.0])  # d = -30 and d = 30
    assert torch.autograd.grad(estimate.sum(), ours)[0].tolist() == [0.0, 0.0]
    free = low_variance_kl(ours, theirs)
    assert free.tolist() == pytest.approx([math.exp(30) - 31, math.exp(-30) + 29])


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3", "k3+"])
def test_nan_is_never_hidden(name: str) -> None:
    nan, zero = torch.tensor(float("nan")), torch.tensor(0.0)
    assert kl_estimate(nan, zero, name).isnan() and kl_estimate(zero, nan, name).isnan()


@pytest.mark.parametrize("name", ["full", "k4", "+", "K3"])
def test_an_unknown_estimator_is_refused(name: str) -> None:
    with pytest.raises(ObjectiveError, match="low_var_kl"):
        kl_estimate(torch.zeros(1), torch.zeros(1), name)


@pytest.mark.parametrize(
    ("current", "factor"),
    [(0.1, 1.0), (0.11, 1 + 0.1 * 0.064), (0.0, 1 - 0.2 * 0.064), (9.0, 1 + 0.2 * 0.064)],
)
def test_the_adaptive_coefficient_moves_by_at_most_a_fifth(current: float, factor: float) -> None:
    moved = next_kl_coefficient(0.5, current, target=0.1, horizon=1000, num_steps=64)
    assert moved == pytest.approx(0.5 * factor, rel=1e-12)
