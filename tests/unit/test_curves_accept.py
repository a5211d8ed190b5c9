"""Acceptance: what passes, what fails, and how often chance alone fails (field report 73)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from align.core.finding import Severity
from align.core.metric import MetricLog, MetricSeries
from align.curves.accept import Acceptance, accept, final_steps
from align.curves.accept_findings import acceptance_findings
from align.curves.criterion import Outcome, decide
from align.curves.pair import pair_logs

SIGMA, PLATEAU, STEPS = 0.02, 0.6, 500
TIME = np.arange(STEPS)
TREND = PLATEAU * (1 - np.exp(-TIME / 60))
Fault = Callable[[np.ndarray], np.ndarray]

FAULTS: dict[str, Fault] = {
    "none": lambda time: 0.0 * time,
    "offset": lambda time: np.full(len(time), -0.03),
    "drift": lambda time: -0.08 * np.clip((time - 200) / 300, 0, 1),
    "step": lambda time: -0.05 * (time >= 300),
}


def make_log(**values: np.ndarray) -> MetricLog:
    series = []
    for spelling, array in values.items():
        name, num = spelling.replace("__", "/"), len(array)
        steps, zeros = np.arange(1, num + 1), np.zeros(num)
        series.append(MetricSeries(name, name, "run.log", steps, np.asarray(array), zeros, steps))
    return MetricLog("run.log", "test", None, tuple(series))


def judge(reference: np.ndarray, candidate: np.ndarray, **more: np.ndarray) -> Acceptance:
    logs = [make_log(critic__score__mean=v, **more) for v in (reference, candidate)]
    acceptance = accept(pair_logs(*logs))
    assert acceptance is not None
    return acceptance


def noise(rng: np.random.Generator, correlation: float) -> np.ndarray:
    values = rng.normal(size=STEPS)
    for i in range(1, STEPS):
        values[i] = correlation * values[i - 1] + np.sqrt(1 - correlation**2) * values[i]
    return SIGMA * values


def outcomes(fault: str, correlation: float, num: int) -> tuple[Counter[Outcome], Counter[Outcome]]:
    rng = np.random.default_rng(7)
    scale = {"critic__score__max": np.ones(STEPS), "critic__score__min": np.zeros(STEPS)}
    absolute: Counter[Outcome] = Counter()
    convergence: Counter[Outcome] = Counter()
    for _ in range(num):
        reference = TREND + noise(rng, correlation)
        candidate = TREND + FAULTS[fault](TIME) + noise(rng, correlation)
        criteria = judge(reference, candidate, **scale).criteria
        absolute[criteria[0].outcome] += 1
        convergence[criteria[1].outcome] += 1
    return absolute, convergence


@pytest.mark.parametrize(("correlation", "num_seeds"), [(0.0, 30), (0.5, 100), (0.9, 100)])
def test_statistically_identical_curves_do_not_fail_in_99_of_100_seeds(
    correlation: float, num_seeds: int
) -> None:
    # Point by point the same curves have a mean relative error of 11 %.
    absolute, convergence = outcomes("none", correlation, num_seeds)
    assert absolute[Outcome.FAIL] + convergence[Outcome.FAIL] <= 1


def test_statistically_identical_curves_pass_when_steps_are_independent() -> None:
    absolute, convergence = outcomes("none", 0.0, 50)
    assert absolute[Outcome.PASS] >= 49
    assert convergence[Outcome.PASS] >= 49


def test_an_offset_on_the_limit_is_undecided() -> None:
    # 0.03 of 0.6 is 5 %, exactly the limit of convergence; of the reward scale it is 3 %.
    absolute, convergence = outcomes("offset", 0.0, 40)
    assert absolute[Outcome.PASS] >= 39
    assert convergence[Outcome.UNDECIDED] >= 36


@pytest.mark.parametrize("fault", ["drift", "step"])
def test_a_late_drift_or_step_fails_convergence(fault: str) -> None:
    assert outcomes(fault, 0.0, 40)[1][Outcome.FAIL] >= 39


def test_errors_are_those_of_the_closed_form() -> None:
    flat = np.full(100, 0.5)
    absolute, convergence = judge(
        flat, flat + 0.01, critic__score__max=flat + 0.5, critic__score__min=flat - 0.5
    ).criteria
    assert absolute.error == pytest.approx(0.01)  # of a scale of 1
    assert convergence.error == pytest.approx(0.02)  # of a level of 0.5
    assert (absolute.low, absolute.high) == pytest.approx((0.01, 0.01))


def test_without_extremes_the_denominator_is_the_final_level() -> None:
    flat = np.full(100, 0.5)
    absolute, _ = judge(flat, flat + 0.01).criteria
    assert absolute.error == pytest.approx(0.02)
    assert "final level" in absolute.formula.en


def test_a_reward_around_zero_is_measured_against_its_range() -> None:
    rising = np.linspace(-1, 0, 100)
    _, convergence = judge(rising, rising + 0.01).criteria
    # the 5-step average spans 0.98 at most, the last 20 steps have a level of 0.1
    assert convergence.error == pytest.approx(0.01 / 0.98, rel=0.02)


def test_equal_curves_of_zeros_pass_and_a_lifted_one_fails() -> None:
    zeros = np.zeros(60)
    assert judge(zeros, zeros).outcomes == {Outcome.PASS}
    assert judge(zeros, zeros + 0.1).outcomes == {Outcome.FAIL}


def test_29_steps_are_too_short_to_judge_and_30_are_not() -> None:
    flat = np.full(30, 0.5)
    short = judge(flat[:29], flat[:29])
    assert short.outcomes == {Outcome.TOO_SHORT}
    assert "30" in short.criteria[0].formula.en
    assert judge(flat, flat).outcomes == {Outcome.PASS}


def test_only_the_first_500_steps_count() -> None:
    reference = np.full(600, 0.5)
    candidate = np.where(np.arange(600) < 500, 0.5, 0.1)
    acceptance = judge(reference, candidate)
    assert (acceptance.num_steps, acceptance.complete) == (500, True)
    assert acceptance.outcomes == {Outcome.PASS}


def test_24_hours_end_the_comparison_before_500_steps() -> None:
    flat = np.full(400, 0.5)
    acceptance = judge(flat, flat, timing_s__step=np.full(400, 432.0))  # 200 steps a day
    assert (acceptance.num_steps, acceptance.complete) == (200, True)
    assert not judge(flat, flat).complete


@pytest.mark.parametrize(
    ("num", "longer"), [(100, True), (500, False), (600, False)], ids=["short", "whole", "longer"]
)
def test_longer_training_is_advised_only_before_the_horizon(num: int, longer: bool) -> None:
    # The converged level is 5 % off on average, exactly the limit.
    sawtooth = 0.5 + 0.05 * (np.arange(num) % 2)
    findings = acceptance_findings(judge(np.full(num, 0.5), sawtooth), 1)
    undecided = [f for f in findings if f.severity is Severity.WARNING]
    assert [f.id for f in undecided] == ["curves.reward.convergence_error"]
    assert ("Train both runs longer" in undecided[0].fix.en) is longer
    assert "Repeat the reference" in undecided[0].fix.en


def test_the_interval_decides() -> None:
    assert decide(0.01, 0.04, 0.04) is Outcome.PASS
    assert decide(0.03, 0.05, 0.04) is Outcome.UNDECIDED
    assert decide(0.041, 0.05, 0.04) is Outcome.FAIL


def test_a_tenth_of_the_run_stands_for_its_final_level() -> None:
    assert [final_steps(n) for n in (58, 200, 500)] == [20, 20, 50]


def test_runs_without_a_reward_are_not_judged() -> None:
    log = make_log(train__loss=np.ones(50))
    assert accept(pair_logs(log, log)) is None
