"""Where limits come from: what is measured on further runs, and what is asked of many at once."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.layers.along import Direction, along
from align.layers.false_discovery import critical_deviate, deviate
from align.layers.noise import kind_of
from dumps.store.tensor_records import Phase, TensorRecord


def record(values: np.ndarray, **changes: object) -> TensorRecord:
    """Return the record of a tensor, its sketch by signs drawn here."""
    draw = np.random.default_rng(0)
    rows, columns = (draw.choice([-1.0, 1.0], (size, 16)) for size in values.shape)
    whole = TensorRecord(
        "model.layers.0.mlp",
        Phase.FORWARD,
        0,
        0,
        "float32",
        values.shape,
        values.size,
        rows.T @ values @ columns / 16,
        float(np.linalg.norm(values)),
        float(values.sum()),
        float(values.min()),
        float(values.max()),
        *(0,) * 6,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


@given(st.integers(0, 2**32 - 1), st.floats(-0.2, 0.2), st.floats(1e-4, 0.5))
def test_norms_alone_give_the_coefficient_of_an_error_on_its_reference(
    seed: int, gain: float, noise: float
) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(12, 9))
    error = gain * values + noise * draw.normal(size=values.shape)
    relative = float(np.linalg.norm(error) / np.linalg.norm(values))
    found = along(record(values), record(values + error), relative, Direction.GAIN)
    assert found is not None
    assert found.size == pytest.approx((error * values).sum() / (values**2).sum(), abs=1e-9)
    cosine = (error * values).sum() / np.linalg.norm(error) / np.linalg.norm(values)
    assert found.share == pytest.approx(cosine, abs=1e-6)


def test_totals_give_the_mean_error() -> None:
    values = np.random.default_rng(1).normal(size=(40, 30))
    found = along(record(values), record(values + 0.01), 0.01, Direction.OFFSET)
    assert found is not None
    assert found.size == pytest.approx(0.01 / np.sqrt((values**2).mean()))


def test_norms_see_a_factor_that_sketches_do_not() -> None:
    """The standard errors are those stated: 1/sqrt(elements) and 1/16, a little more if small."""
    draw = np.random.default_rng(2)
    from_norms, from_sketches = [], []
    for _ in range(300):
        values, error = draw.normal(size=(2, 64, 64))
        error *= 1e-2
        rows, columns = draw.choice([-1.0, 1.0], (2, 64, 16))
        of_values, of_error = (rows.T @ each @ columns / 16 for each in (values, error))
        sizes = np.linalg.norm(values) * np.linalg.norm(error)
        from_sketches.append((of_values * of_error).sum() / sizes)
        own, other = (float(np.linalg.norm(each)) for each in (values, values + error))
        relative = float(np.linalg.norm(error)) / own
        found = along(record(values, l2=own), record(values, l2=other), relative, Direction.GAIN)
        assert found is not None
        from_norms.append(found.share)
    assert np.std(from_sketches) == pytest.approx((1 + 15 / 64) / 16, rel=0.15)
    assert np.std(from_norms) == pytest.approx(1 / 64, rel=0.2)


@pytest.mark.parametrize("size", [0.0, math.nan, math.inf])
def test_no_error_and_no_number_have_no_direction(size: float) -> None:
    values = np.ones((2, 2))
    assert along(record(values), record(values), size, Direction.GAIN) is None


@pytest.mark.parametrize(
    ("quantile", "freedom", "chance"),
    [(4.587, 10, 1e-3), (2.228, 10, 0.05), (3.659, 29, 1e-3), (5.959, 6, 1e-3)],
)
def test_a_ratio_is_as_rare_as_tables_of_students_t_say(
    quantile: float, freedom: int, chance: float
) -> None:
    expected = NormalDist().inv_cdf(1 - chance / 2)
    assert deviate(quantile, freedom) == pytest.approx(expected, abs=0.03)


def test_the_example_of_benjamini_and_hochberg_has_four_discoveries() -> None:
    chances = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324]
    chances += [0.4262, 0.5719, 0.6528, 0.759, 1.0]
    deviates = [NormalDist().inv_cdf(1 - chance / 2) for chance in chances]
    limit = critical_deviate(deviates, 0.05)
    assert [each >= limit for each in deviates] == [True] * 4 + [False] * 11


def test_noise_alone_is_hardly_ever_a_discovery() -> None:
    draw = np.random.default_rng(3)
    alarms = 0
    for _ in range(200):
        deviates = [abs(float(x)) for x in draw.normal(size=100)]
        alarms += max(deviates) > critical_deviate(deviates)
    assert alarms <= 2


def test_layers_and_experts_of_one_kind_are_pooled() -> None:
    assert (
        kind_of("model.layers.3.mlp.experts.11.up_proj") == "model.layers.*.mlp.experts.*.up_proj"
    )
    assert kind_of("lm_head") == "lm_head"
