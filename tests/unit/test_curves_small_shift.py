"""A shift of 4 % is found in every seed, though its smoothed difference touches 0 now and then."""

from __future__ import annotations

import math

import numpy as np

from align.core.metric import MetricLog, MetricSeries
from align.curves.diverge import find_shifts
from align.curves.pair import pair_logs

STEPS, SIGMA, LEVEL = 500, 0.02, 0.6


def noise(rng: np.random.Generator, correlation: float) -> np.ndarray:
    values = rng.normal(size=STEPS)
    for i in range(1, STEPS):
        values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * values[i]
    return SIGMA * values


def num_shifted(offset: float, seeds: int = 60) -> int:
    found = 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        correlation = float(rng.uniform(0.3, 0.7))
        logs = []
        for change in (0.0, offset):
            steps, zeros = np.arange(1, STEPS + 1), np.zeros(STEPS)
            values = LEVEL + change + noise(rng, correlation)
            name = "critic/score/mean"
            series = MetricSeries(name, name, "run.log", steps, values, zeros, steps)
            logs.append(MetricLog("run.log", "test", None, (series,)))
        found += bool(find_shifts(pair_logs(*logs).metrics))
    return found


def test_an_offset_of_4_percent_is_found_in_every_seed() -> None:
    assert num_shifted(-0.04 * LEVEL) == 60


def test_a_clean_twin_shows_no_shift_in_any_seed() -> None:
    assert num_shifted(0.0) == 0
