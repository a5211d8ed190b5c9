"""Trainer and rollout log_probs that differ everywhere: temperature, log S, noise.

Expected values come from logits in float64: softmax at both temperatures, and the nucleus by
sorting.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="the referee reads tensors")

import torch

from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.referee.link import Link, LinkVerdict
from align.referee.probability_link import probability_link
from align.referee.probability_slope import regression, slope_between, survivors
from align.referee.step_batch import StepBatch

ROWS, WIDTH, VOCABULARY = 40, 100, 50
FloatArray = npt.NDArray[np.float64]
DIFFERS, RIGHT = LinkVerdict.DIFFERS, LinkVerdict.AS_DECLARED


def log_softmax(logits: FloatArray) -> FloatArray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def logits(seed: int) -> FloatArray:
    return 3 * np.random.default_rng(seed).normal(size=(ROWS * WIDTH, VOCABULARY))


def nucleus(log_probs: FloatArray, top_p: float) -> FloatArray:
    """Renormalise over the fewest tokens that hold ``top_p``, -inf elsewhere."""
    order = np.argsort(-log_probs, axis=-1)
    ranked = np.take_along_axis(np.exp(log_probs), order, -1)
    kept = np.cumsum(ranked, axis=-1) - ranked < top_p
    cut = np.full_like(log_probs, -np.inf)
    np.put_along_axis(cut, order, np.where(kept, np.log(ranked), -np.inf), -1)
    return cut - np.log(np.exp(cut).sum(-1, keepdims=True))


def taken(seed: int, drawn_from: FloatArray, *of: FloatArray) -> list[FloatArray]:
    """Sample a token a position; return [b, r], what each of the distributions gives it."""
    cumulated = np.cumsum(np.exp(drawn_from), axis=-1)
    point = np.random.default_rng(seed).uniform(0, cumulated[:, -1:])
    token = (cumulated < point).sum(-1)
    rows = np.arange(len(token))
    return [each[rows, token].reshape(ROWS, WIDTH) for each in of]


def link(trainer: FloatArray, rollout: FloatArray, **declared: ConfigLeaf) -> Link:
    tensors = {
        "old_log_probs": torch.from_numpy(trainer),
        "rollout_log_probs": torch.from_numpy(rollout),
        "response_mask": torch.ones(trainer.shape, dtype=torch.float64),
    }
    return probability_link(StepBatch(1, tensors, None), declaring(**declared))


def declaring(**declared: ConfigLeaf) -> EffectiveConfig:
    place = Provenance(ProvenanceKind.OVERRIDE, "overrides.yaml", 1, "")
    names = {f"rollout.{name}": value for name, value in declared.items()}
    values = {n: EffectiveValue(n, v, ConfigValue(n, v, place)) for n, v in names.items()}
    return EffectiveConfig("verl", None, values)


def note(found: Link) -> str:
    return "" if found.note is None else found.note.en


@pytest.mark.parametrize("temperature", [0.6, 0.8, 1.3])
@pytest.mark.parametrize("is_engine", [True, False])
def test_a_temperature_that_one_side_leaves_out_is_named_with_the_side(
    temperature: float, is_engine: bool
) -> None:
    own = logits(0)
    warm, cold = log_softmax(own / temperature), log_softmax(own)
    trainer, rollout = taken(0, warm, *((warm, cold) if is_engine else (cold, warm)))
    found = link(trainer, rollout, temperature=temperature, top_p=1.0)
    assert found.verdict is DIFFERS
    side = "engine" if is_engine else "trainer"
    assert f"the {side} leaves temperature {temperature:g} out" in note(found)
    said = note(link(trainer, rollout, temperature=1.0, top_p=1.0))
    assert "temperatures differ" in said and "leaves" not in said


@pytest.mark.parametrize("temperature", [0.6, 0.8, 1.3])
def test_the_slope_is_one_by_t_where_every_normaliser_is_alike(temperature: float) -> None:
    # the same logits in another order at every position
    draw = np.random.default_rng(0)
    own = draw.permuted(np.tile(draw.normal(size=VOCABULARY), (ROWS * WIDTH, 1)), axis=1)
    warm = log_softmax(own / temperature)
    trainer, rollout = taken(0, warm, warm, log_softmax(own))
    slope = slope_between(rollout.ravel(), trainer.ravel())
    assert slope.low == pytest.approx(1 / temperature, abs=1e-9)
    assert slope.high == pytest.approx(1 / temperature, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_equal_temperatures_are_as_declared_with_the_rounding_of_bfloat16(seed: int) -> None:
    warm = log_softmax(logits(seed) / 0.6)
    trainer, rollout = taken(seed, warm, warm, warm)
    rounded = rollout + 0.004 * np.random.default_rng(seed).normal(size=rollout.shape)
    found = link(trainer, rounded, temperature=0.6, top_p=1.0)
    assert (found.verdict, found.note) == (RIGHT, None)


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_both_sides_is_no_temperature(seed: int) -> None:
    draw = np.random.default_rng(seed)
    true = -draw.exponential(1.0, (ROWS, WIDTH))
    trainer, rollout = (true + draw.normal(0, 0.2, true.shape) for _ in range(2))
    # the regression alone is flat by the share of noise in the rollout: 1 / (1 + 0.2^2)
    assert regression(rollout.ravel(), trainer.ravel())[0] == pytest.approx(0.9615, abs=0.02)
    found = link(trainer, rollout, temperature=1.0, top_p=1.0)
    assert found.verdict is DIFFERS and "slope 1" in note(found)


@pytest.mark.parametrize("top_p", [0.8, 0.9, 0.95])
def test_log_s_of_a_nucleus_has_its_mean_and_no_less_than_top_p(top_p: float) -> None:
    whole = log_softmax(logits(0))
    cut = nucleus(whole, top_p)
    trainer, rollout = taken(0, cut, whole, cut)
    found = survivors(trainer.ravel(), rollout.ravel())
    assert found is not None
    assert found.mean == pytest.approx(float((rollout - trainer).mean()), abs=1e-12)
    assert top_p <= found.least_mass <= top_p + 0.02
    declared = link(trainer, rollout, temperature=1.0, top_p=top_p)
    assert declared.verdict is RIGHT and "never lower" in note(declared)
    for other in (1.0, top_p + 0.04):
        assert link(trainer, rollout, temperature=1.0, top_p=other).verdict is DIFFERS
    assert link(trainer, rollout, temperature=1.0, top_p=1.0, top_k=20).verdict is RIGHT


def test_a_first_token_of_long_responses_is_seen_though_the_mean_is_small() -> None:
    whole = log_softmax(logits(0))
    trainer, rollout = taken(0, whole, whole, whole)
    trainer = np.tile(trainer, (1, 5))  # 500 tokens
    rollout = np.tile(rollout, (1, 5))
    assert link(trainer, rollout).verdict is RIGHT
    trainer[:, 0] += 2.0
    found = link(trainer, rollout)
    assert found.recorded is not None and found.recorded < 0.01
    assert found.verdict is DIFFERS and "first token alone" in note(found)


def test_a_regression_is_that_of_the_closed_form() -> None:
    x = np.arange(40, dtype=np.float64)
    slope, error = regression(x, 3 + 0.5 * x)
    assert slope == pytest.approx(0.5, abs=1e-12)
    assert error == pytest.approx(0.0, abs=1e-12)
    assert regression(np.ones(40, np.float64), x) == (1.0, np.inf)
    assert slope_between(np.ones(40), x).is_one
