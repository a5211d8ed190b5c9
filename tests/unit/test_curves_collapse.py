"""Changes late in a run: collapses of reward and response length, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from align.core.finding import Finding, Severity
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import RungResult, RungStatus
from align.curves.change import change_point, late_change
from align.curves.rung import compare_logs
from align.ladder import earliest_symptom

Edit = Callable[[np.ndarray], np.ndarray]
Run = dict[str, np.ndarray]
REWARD, LENGTH, GRAD, ENTROPY = (
    "critic/score/mean",
    "response_length/mean",
    "actor/grad_norm",
    "actor/entropy",
)
REWARD_COLLAPSE, LENGTH_COLLAPSE = (
    f"curves.{name.replace('/', '.')}.collapse" for name in (REWARD, LENGTH)
)


def autocorrelated(rng: np.random.Generator, num: int, correlation: float) -> np.ndarray:
    values = rng.normal(size=num)
    for i in range(1, num):
        values[i] = correlation * values[i - 1] + np.sqrt(1 - correlation**2) * values[i]
    return values


def training_run(seed: int, num: int = 600, correlation: float = 0.3, **edits: Any) -> Run:
    """Make a reward that settles at 0.7, 400 tokens a response, gradient norm and entropy."""
    rng, time = np.random.default_rng(seed), np.arange(num)

    def z() -> np.ndarray:
        return autocorrelated(rng, num, correlation)

    run = {
        REWARD: 0.2 + 0.5 * (1 - np.exp(-6 * time / num)) + 0.02 * z(),
        LENGTH: 400 * np.exp(0.03 * z()),
        GRAD: 0.3 * np.exp(0.07 * z()),
        ENTROPY: 0.5 * np.exp(-2 * time / num) * np.exp(0.03 * z()),
    }
    names = {"reward": REWARD, "length": LENGTH, "grad": GRAD, "entropy": ENTROPY}
    return {**run, **{names[key]: edit(run[names[key]]) for key, edit in edits.items()}}


def last(num: int, edit: Edit) -> Edit:
    """Apply an edit to the last steps only."""
    return lambda values: np.concatenate([values[:-num], edit(values[-num:])])


def compare(reference: Run, candidate: Run) -> RungResult:
    def log(run: Run) -> MetricLog:
        series = []
        for name, values in run.items():
            steps = np.arange(1, len(values) + 1)
            zeros = np.zeros(len(values))
            series.append(MetricSeries(name, name, "run.log", steps, values, zeros, steps))
        return MetricLog("run.log", "test", None, tuple(series))

    return compare_logs(log(reference), log(candidate))


def ids(result: RungResult, severity: Severity) -> set[str]:
    return {f.id for f in result.findings if f.severity is severity}


def named(result: RungResult, id: str) -> Finding:
    return next(f for f in result.findings if f.id == id)


fall: Edit = lambda values: values - 0.5  # noqa: E731
shrink: Edit = lambda values: values / 5  # noqa: E731


def test_a_reward_that_falls_after_the_steps_acceptance_judges_is_an_error() -> None:
    result = compare(training_run(0), training_run(1, reward=last(100, fall)))
    assert result.status is RungStatus.DIVERGED
    assert ids(result, Severity.ERROR) == {REWARD_COLLAPSE}
    found = named(result, REWARD_COLLAPSE)
    assert found.symptom is not None
    assert (found.symptom.step, found.symptom.step_uncertainty) == (501, 0)
    assert not found.symptom.noise_sized
    assert "of the candidate collapses from step 501 on (0.7" in found.title.en
    assert float(found.candidate) == pytest.approx(0.2, abs=0.02)  # type: ignore[arg-type]
    assert float(found.reference) == pytest.approx(0.7, abs=0.02)  # type: ignore[arg-type]
    assert "最后 100 步" in found.why.zh


def test_its_clean_twin_is_aligned() -> None:
    result = compare(training_run(0), training_run(1))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())


def test_responses_that_shrink_to_a_fifth_at_the_end_are_an_error() -> None:
    result = compare(training_run(2, 500), training_run(3, 500, length=last(70, shrink)))
    assert ids(result, Severity.ERROR) == {LENGTH_COLLAPSE}
    symptom = named(result, LENGTH_COLLAPSE).symptom
    assert symptom is not None and (symptom.step, symptom.rung.value) == (431, "rollout")


def test_the_response_length_is_named_before_the_reward_that_follows_it() -> None:
    candidate = training_run(5, length=last(100, shrink), reward=last(90, fall))
    result = compare(training_run(4), candidate)
    named = [f.id for f in result.findings if f.id != "curves.collapse_signature"]
    assert named[:2] == [LENGTH_COLLAPSE, REWARD_COLLAPSE]
    first = earliest_symptom(result.findings)
    assert first is not None and first.id == LENGTH_COLLAPSE


@pytest.mark.parametrize(
    ("fault", "id"),
    [
        ({"entropy": last(60, shrink)}, "curves.actor.entropy.ratio"),
        ({"grad": last(60, lambda v: 3 * v)}, "curves.actor.grad_norm.ratio"),
        ({"length": last(60, lambda v: 1.4 * v)}, "curves.response_length.mean.shift"),
        ({"reward": last(60, lambda v: v - 0.2)}, "curves.critic.score.mean.shift"),
    ],
)
def test_other_late_changes_are_warnings(fault: dict[str, Any], id: str) -> None:
    result = compare(training_run(6), training_run(7, **fault))
    assert (ids(result, Severity.ERROR), ids(result, Severity.WARNING)) == (set(), {id})
    symptom = named(result, id).symptom
    assert symptom is not None and abs(symptom.step - 541) <= 2


@pytest.mark.parametrize("correlation", [0.3, 0.8])
@pytest.mark.parametrize(("num", "at_end"), [(40, 8), (58, 6), (58, 40), (500, 10), (500, 200)])
def test_a_collapse_is_found_wherever_it_begins(num: int, at_end: int, correlation: float) -> None:
    # Measured over 20 seeds each: all, from the last 6 of 58 steps to 7 in 10 of 1500.
    for seed in range(5):
        reference = training_run(seed, num, correlation)
        candidate = training_run(
            seed + 50, num, correlation, reward=last(at_end, fall), length=last(at_end, shrink)
        )
        found = ids(compare(reference, candidate), Severity.ERROR)
        assert {REWARD_COLLAPSE, LENGTH_COLLAPSE} <= found


def test_a_fall_that_takes_thirty_steps_is_dated_near_its_beginning() -> None:
    ramp = np.clip(np.arange(1, 101) / 30, 0, 1)
    result = compare(training_run(8), training_run(9, reward=last(100, lambda v: v - 0.5 * ramp)))
    symptom = named(result, REWARD_COLLAPSE).symptom
    assert symptom is not None
    assert abs(symptom.step - 501) <= 8
    assert symptom.begun_by >= 501


def test_a_collapse_of_the_reference_says_so() -> None:
    result = compare(training_run(10, reward=last(60, fall)), training_run(11))
    assert "of the reference collapses" in named(result, REWARD_COLLAPSE).title.en


def test_runs_that_collapse_alike_are_no_collapse() -> None:
    edits: dict[str, Any] = {"reward": last(60, fall), "length": last(60, shrink)}
    result = compare(training_run(12, **edits), training_run(13, **edits))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())


def test_a_candidate_that_comes_back_to_the_reference_is_no_late_change() -> None:
    early: Edit = lambda v: np.concatenate([v[:200] - 0.1, v[200:]])  # noqa: E731
    result = compare(training_run(14), training_run(15, reward=early))
    assert not any("collapse" in f.id or "shift" in f.id for f in result.findings)


def test_three_wild_last_steps_are_no_late_change() -> None:
    result = compare(training_run(16), training_run(17, grad=last(3, lambda v: 50 * v)))
    assert ids(result, Severity.WARNING) == set()


@pytest.mark.parametrize(
    ("num", "correlation", "num_seeds", "most"),
    # Measured over 300 seeds x 10 metrics: warnings in 0, 2, 3 % of pairs at 30 steps,
    # 0, 1, 2 % at 58 and 0 % at 500 (autocorrelation 0.5, 0.8, 0.9); never a collapse.
    [(30, 0.8, 60, 3), (30, 0.5, 60, 1), (58, 0.8, 60, 2), (500, 0.8, 20, 0)],
)
def test_clean_pairs_hardly_ever_shift_and_never_collapse(
    num: int, correlation: float, num_seeds: int, most: int
) -> None:
    warned = 0
    for seed in range(num_seeds):
        pair = (training_run(s, num, correlation) for s in (seed, seed + 1000))
        found = {f.id: f.severity for f in compare(*pair).findings}
        assert not any("collapse" in id for id in found)
        warned += any(
            severity is Severity.WARNING and not id.startswith("curves.reward")
            for id, severity in found.items()
        )
    assert warned <= most


def test_noise_that_grows_with_training_is_no_late_change() -> None:
    # With the noise of all earlier steps alone, one clean pair in fifty was warned of.
    for seed in range(30):
        rng = np.random.default_rng(seed)
        growing = np.linspace(0.3, 1.7, 500)
        pair = ({GRAD: 0.5 * np.exp(0.2 * growing * rng.normal(size=500))} for _ in range(2))
        assert ids(compare(*pair), Severity.WARNING) == set()


def test_the_change_point_of_two_levels_is_where_they_meet() -> None:
    values = np.concatenate([np.zeros(70), np.ones(30)])
    assert change_point(values) == 70
    assert change_point(values[:9]) == 0  # too short for two levels of 5


def test_a_late_change_is_measured_against_the_level_before() -> None:
    rng = np.random.default_rng(18)
    values = 0.5 + 0.1 * rng.normal(size=400)
    assert late_change(values) is None or late_change(values).p > 0.01  # type: ignore[union-attr]
    values[370:] += 1
    change = late_change(values)
    assert change is not None
    assert change.at == 370
    assert (change.earlier, change.size) == pytest.approx((0.5, 1.0), abs=0.1)
    assert change.p < 1e-6
