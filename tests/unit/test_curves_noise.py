"""Smoothing, noise estimates and the bootstrap against closed forms and tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from align.curves.bootstrap import block_length, mean_interval, resample
from align.curves.noise import (
    cautious_size,
    effective_size,
    error_of_average,
    holm,
    lag_one_autocorrelation,
    p_value,
    step_noise,
    t_quantile,
    two_sided_t,
)
from align.curves.smooth import smooth, window_for


def ar1(rng: np.random.Generator, num: int, correlation: float) -> np.ndarray:
    values = rng.normal(size=num)
    for i in range(1, num):
        values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * values[i]
    return values


@pytest.mark.parametrize(("num_steps", "window"), [(500, 21), (58, 5), (116, 5), (250, 11), (1, 5)])
def test_the_window_is_odd_and_in_proportion_to_the_run(num_steps: int, window: int) -> None:
    assert window_for(num_steps) == window


def test_smoothing_averages_what_is_there_and_leaves_out_what_is_no_number() -> None:
    values = np.array([1.0, 2.0, np.nan, 4.0, np.inf, 6.0])
    assert smooth(values, 3).tolist() == [1.5, 1.5, 3.0, 4.0, 5.0, 6.0]
    assert np.isnan(smooth(np.full(4, np.nan), 3)).all()


def test_smoothing_agrees_with_pandas() -> None:
    import pandas as pd

    values = np.random.default_rng(0).normal(size=97)
    expected = pd.Series(values).rolling(11, center=True, min_periods=1).mean().to_numpy()
    np.testing.assert_allclose(smooth(values, 11), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),  # any table of Student's t
    [(2.228, 10, 0.05), (3.169, 10, 0.01), (4.587, 10, 0.001), (2.042, 30, 0.05), (2.776, 4, 0.05)],
)
def test_two_sided_t_reproduces_the_table(t: float, freedom: float, p: float) -> None:
    assert two_sided_t(t, freedom) == pytest.approx(p, rel=0.06)
    assert t_quantile(1 - p, freedom) == pytest.approx(t, rel=0.01)


def test_holm_adjusts_as_in_the_worked_example() -> None:
    # 4 x 0.01, 3 x 0.013, then the largest so far
    assert holm([0.04, 0.01, 0.03, 0.013]) == pytest.approx([0.06, 0.04, 0.06, 0.04])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_autocorrelation_and_step_noise_are_recovered(correlation: float) -> None:
    rng = np.random.default_rng(1)
    series = [ar1(rng, 400, correlation) for _ in range(200)]
    assert np.mean([lag_one_autocorrelation(s) for s in series]) == pytest.approx(
        correlation, abs=0.03
    )
    assert np.mean([step_noise(s) for s in series]) == pytest.approx(1.0, abs=0.05)


def test_a_drift_is_not_taken_for_noise() -> None:
    values = np.linspace(0, 10, 200) + np.random.default_rng(2).normal(size=200)
    assert lag_one_autocorrelation(values) < 0.2
    assert step_noise(values) == pytest.approx(1.0, abs=0.15)
    assert effective_size(values) > 100


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_p_values_of_pure_noise_are_nearly_uniform(correlation: float) -> None:
    rng = np.random.default_rng(3)
    p_values = np.array([p_value(ar1(rng, 250, correlation)) for _ in range(2000)])
    assert (p_values < 0.05).mean() == pytest.approx(0.05, abs=0.025)


def test_a_series_that_never_varies_is_judged_by_its_value() -> None:
    assert p_value(np.zeros(10)) == 1.0
    assert p_value(np.full(10, 0.1)) == 0.0


def test_resampled_series_are_made_of_whole_blocks_and_never_change_between_runs() -> None:
    values = np.arange(40, dtype=np.float64)
    drawn = resample(values, 5)
    assert (np.diff(drawn[:, :5], axis=1) == 1).all()
    assert (drawn == resample(values, 5)).all()


def test_blocks_grow_with_autocorrelation() -> None:
    rng = np.random.default_rng(4)
    assert block_length(rng.normal(size=500)) <= 4
    # Carlstein: (sqrt(6) 0.9 / 0.19)^(2/3) 500^(1/3) = 41
    assert 25 <= block_length(ar1(rng, 500, 0.9)) <= 60


@pytest.mark.parametrize(("correlation", "num"), [(0.0, 20), (0.5, 5), (0.8, 20)])
def test_the_error_of_an_average_is_that_of_simulated_ones(correlation: float, num: int) -> None:
    rng = np.random.default_rng(6)
    expected = np.std([ar1(rng, num, correlation).mean() for _ in range(3000)])
    stated = np.mean([error_of_average(ar1(rng, 400, correlation), num) for _ in range(100)])
    # One standard error of the autocorrelation more than the best estimate.
    assert 1.0 <= stated / expected <= 1.25


def test_few_steps_are_worth_less_than_their_own_autocorrelation_says() -> None:
    rng = np.random.default_rng(7)
    series = [ar1(rng, 30, 0.5) for _ in range(300)]
    assert all(cautious_size(s) <= effective_size(s) for s in series)
    truth = 30 * 0.5 / 1.5
    assert np.mean([cautious_size(s) <= truth for s in series]) >= 0.7
    assert np.mean([effective_size(s) <= truth for s in series]) <= 0.6


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_interval_of_a_mean_covers_it_nine_times_in_ten_or_more(correlation: float) -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        values = ar1(rng, 50, correlation)
        low, high = mean_interval(values, block_length(values))
        covered += low <= 0 <= high
    assert covered / 300 >= 0.9
