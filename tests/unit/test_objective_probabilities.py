"""Log-probabilities, entropy, importance weights and learning rates against closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the objective functions need torch")

import torch

from align.frameworks.schedules import ScheduleError, megatron_lr, verl_lr
from align.objective.entropy import entropy_from_logits
from align.objective.errors import ObjectiveError
from align.objective.importance_sampling import (
    RatioLevel,
    effective_sample_fraction,
    rollout_weights,
)
from align.objective.log_probs import log_probs_from_logits

LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=9)


@given(LOGITS, st.floats(0.1, 5))
def test_log_probs_are_the_tempered_softmax(logits: list[float], temperature: float) -> None:
    rows = torch.tensor(logits, dtype=torch.float64).expand(len(logits), -1)
    ours = log_probs_from_logits(rows, torch.arange(len(logits)), temperature=temperature)
    top = max(logits)
    weights = [math.exp((x - top) / temperature) for x in logits]
    expected = [(x - top) / temperature - math.log(math.fsum(weights)) for x in logits]
    assert ours.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert math.fsum(math.exp(x) for x in ours.tolist()) == pytest.approx(1.0)


def test_log_probs_of_forbidden_tokens_stay_infinite_and_nan() -> None:
    logits = torch.tensor([[0.0, float("-inf")], [float("-inf")] * 2, [float("nan"), 0.0]])
    ours = log_probs_from_logits(logits, torch.tensor([1, 0, 1]))
    assert ours[0].item() == float("-inf") and ours[1:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_log_probs_and_entropy_keep_the_dtype(dtype) -> None:
    logits = torch.zeros(2, 8, dtype=dtype)
    log_probs = log_probs_from_logits(logits, torch.zeros(2, dtype=torch.long))
    entropy = entropy_from_logits(logits)
    assert log_probs.dtype == dtype == entropy.dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-2
    assert log_probs.tolist() == pytest.approx([-math.log(8)] * 2, rel=tolerance)
    assert entropy.tolist() == pytest.approx([math.log(8)] * 2, rel=tolerance)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ObjectiveError, match="temperature"):
        log_probs_from_logits(torch.zeros(1, 2), torch.zeros(1).long(), temperature=temperature)


@given(LOGITS)
def test_entropy_is_minus_sum_p_log_p(logits: list[float]) -> None:
    row = torch.tensor(logits, dtype=torch.float64)
    log_probs = row.log_softmax(-1).tolist()
    expected = -math.fsum(math.exp(x) * x for x in log_probs)
    assert entropy_from_logits(row).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_entropy_loses_the_digits_of_large_logits_in_float32() -> None:
    logits = torch.tensor([250.0, 238.0])
    exact = entropy_from_logits(logits.double()).item()
    assert exact == pytest.approx(7.987e-5, rel=1e-3)
    assert abs(entropy_from_logits(logits).item() - exact) > 1e-6


def _weights(log_ratios, mask, level: RatioLevel, **settings):
    ratios = torch.tensor(log_ratios, dtype=torch.float64)
    return rollout_weights(ratios - 2.0, torch.full_like(ratios, -2.0), mask, level, **settings)


def test_token_weights_are_truncated_ratios() -> None:
    log_ratios = [[0.0, math.log(1.5), math.log(5.0), math.log(0.1)]]
    mask = torch.tensor([[1, 1, 1, 0]])
    truncated = _weights(log_ratios, mask, RatioLevel.TOKEN, upper=2.0)
    assert truncated.tolist() == [pytest.approx([1.0, 1.5, 2.0, 0.0])]
    dropped = _weights(log_ratios, mask, RatioLevel.TOKEN, upper=2.0, lower=1.2)
    assert dropped.tolist() == [pytest.approx([0.0, 1.5, 0.0, 0.0])]


def test_sequence_weights_are_truncated_products() -> None:
    log_ratios = [[math.log(2.0), math.log(0.25), 7.0], [math.log(3.0), math.log(3.0), 0.0]]
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    ours = _weights(log_ratios, mask, RatioLevel.SEQUENCE, upper=2.0)
    assert ours[0].tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert ours[1].tolist() == pytest.approx([2.0, 2.0, 2.0])
    normalised = _weights(log_ratios, mask, RatioLevel.SEQUENCE, upper=2.0, normalise=True)
    assert normalised[:, 0].tolist() == pytest.approx([0.4, 1.6])  # mean of 0.5 and 2 is 1.25


def test_identical_engines_weigh_one_and_infinite_ratios_stop_at_the_bound() -> None:
    mask = torch.ones(1, 2)
    assert _weights([[0.0, 0.0]], mask, RatioLevel.TOKEN).tolist() == [[1.0, 1.0]]
    far = _weights([[float("inf"), 90.0]], mask, RatioLevel.TOKEN, upper=1e12)
    assert far.tolist() == [pytest.approx([math.exp(20)] * 2)]


def test_a_nan_ratio_is_never_hidden_and_no_token_gives_no_weight() -> None:
    mask = torch.ones(1, 2)
    assert _weights([[float("nan"), 0.0]], mask, RatioLevel.TOKEN)[0, 0].isnan()
    assert _weights([[float("nan"), 0.0]], mask, RatioLevel.SEQUENCE).isnan().all()
    assert not _weights([[0.3, 0.4]], mask * 0, RatioLevel.TOKEN, normalise=True).any()


def test_weights_carry_no_gradient() -> None:
    log_prob = torch.zeros(1, 2, requires_grad=True)
    weights = rollout_weights(log_prob, torch.zeros(1, 2), torch.ones(1, 2), RatioLevel.TOKEN)
    assert not weights.requires_grad


@pytest.mark.parametrize(("lower", "upper"), [(None, 0.0), (0.0, 2.0), (3.0, 2.0), (None, -1.0)])
def test_bounds_that_make_no_sense_are_refused(lower: float | None, upper: float) -> None:
    with pytest.raises(ObjectiveError, match="0 < lower <= upper"):
        _weights([[0.0]], torch.ones(1, 1), RatioLevel.TOKEN, lower=lower, upper=upper)


def test_the_effective_sample_fraction_falls_to_one_in_n() -> None:
    mask = torch.ones(1, 4)
    even, single = torch.full((1, 4), 0.3), torch.tensor([[4.0, 0.0, 0.0, 0.0]])
    assert effective_sample_fraction(even, mask).item() == pytest.approx(1.0, rel=1e-5)
    assert effective_sample_fraction(single, mask).item() == pytest.approx(0.25, rel=1e-5)


def test_verl_warms_up_from_zero_and_cosine_ends_at_the_floor() -> None:
    constant = [verl_lr(k, lr=2.0, num_warmup_steps=4) for k in range(7)]
    assert constant == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0])
    cosine: dict[str, Any] = {
        "lr": 2.0,
        "style": "cosine",
        "num_training_steps": 10,
        "min_lr_ratio": 0.1,
    }
    assert [verl_lr(k, **cosine) for k in (0, 5, 10)] == pytest.approx([2.0, 1.1, 0.2])


def test_megatron_counts_samples() -> None:
    settings: dict[str, Any] = {
        "lr": 2.0,
        "min_lr": 0.2,
        "warmup_samples": 64,
        "decay_samples": 320,
    }
    assert [megatron_lr(n, **settings) for n in (0, 32, 64, 192, 320, 336)] == pytest.approx(
        [0.0, 1.0, 2.0, 1.1, 0.2, 0.2]
    )
    assert megatron_lr(400, style="constant", **settings) == 2.0
    assert megatron_lr(256, style="inverse-square-root", **settings) == pytest.approx(1.0)
    assert megatron_lr(192, style="cosine", **settings) == pytest.approx(1.1)


def test_schedules_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ScheduleError, match="wsd"):
        verl_lr(0, lr=1.0, style="wsd")
    with pytest.raises(ScheduleError, match="power"):
        megatron_lr(0, lr=1.0, style="power", decay_samples=9)
    with pytest.raises(ScheduleError, match="leaves none of 9"):
        megatron_lr(0, lr=1.0, warmup_samples=9, decay_samples=9)
