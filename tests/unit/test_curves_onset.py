"""How exactly the step is found from which on two curves are apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from align.core.metric import MetricSeries
from align.curves.onset import Onset, onset_of
from align.curves.pair import pair_series


def onset(difference: np.ndarray, *, every: int = 1, earlier: float = 0.0) -> Onset:
    num = len(difference)
    steps, zeros, lines = np.arange(1, num + 1) * every, np.zeros(num), np.arange(num)
    reference, candidate = (
        MetricSeries("train/loss", "train/loss", "run.log", steps, values, zeros, lines)
        for values in (np.full(num, 5.0), 5.0 + difference)
    )
    return onset_of(pair_series(reference, candidate), 1.0, earlier)


def noise(seed: int, num: int, correlation: float) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=num)
    for i in range(1, num):
        values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * values[i]
    return values


@pytest.mark.parametrize(
    ("num", "at", "correlation", "exact", "early"),
    # Over 200 seeds 99 % are exact at 500 steps (92 % at 0.8), 94 % or more at 40 (83 % at 0.8).
    [(500, 300, 0.0, 95, 2), (500, 300, 0.8, 85, 3), (500, 470, 0.5, 93, 5), (40, 25, 0.3, 93, 3)],
)
def test_a_jump_of_eight_deviations_is_dated_to_the_step(
    num: int, at: int, correlation: float, exact: int, early: int
) -> None:
    jump = 8.0 * (np.arange(1, num + 1) >= at)
    found = [onset(noise(seed, num, correlation) + jump) for seed in range(100)]
    assert sum(o.step == at for o in found) >= exact
    assert sum(o.step + o.uncertainty < at for o in found) <= early


def test_a_ramp_is_dated_near_its_beginning_and_not_said_to_be_exact() -> None:
    ramp = 25 * np.clip((np.arange(1, 501) - 300) / 30, 0, 1)
    for seed in range(20):
        found = onset(noise(seed, 500, 0.3) + ramp)
        assert abs(found.step - 301) <= 5
        assert found.step + found.uncertainty >= 301


def test_curves_apart_from_the_first_step_on_are_dated_to_it() -> None:
    assert onset(8 + noise(1, 60, 0.3)) == Onset(1, 0)


def test_a_slow_drift_has_half_a_window_of_uncertainty_at_most() -> None:
    found = onset(noise(2, 500, 0.3) + np.linspace(0, 10, 500))
    assert 0 < found.uncertainty <= 10
    assert found.words.en == f"from about step {found.step} on"


def test_a_change_of_an_earlier_difference_is_measured_from_it() -> None:
    jump = 3 + 8.0 * (np.arange(1, 501) >= 400)
    assert onset(noise(3, 500, 0.3) + jump, earlier=3.0).step == 400


def test_uncertainty_counts_steps_and_not_records() -> None:
    jump = 8.0 * (np.arange(500) >= 300)
    assert onset(noise(4, 500, 0.0) + jump, every=10) == Onset(3010, 0)
    drift = np.linspace(0, 10, 500)
    once, tenth = (onset(noise(4, 500, 0.0) + drift, every=every) for every in (1, 10))
    assert tenth.uncertainty == 10 * once.uncertainty > 0
