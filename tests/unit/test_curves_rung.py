"""Planted faults in synthetic curves, each with its clean twin; rates over many seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.document import scalar_to_json
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import RungResult, RungStatus
from align.core.text import Text
from align.curves.rung import compare_logs
from align.ladder import earliest_symptom

Edit = Callable[[np.ndarray], np.ndarray]
REWARD, KL, GRAD, LENGTH = (
    "critic/score/mean",
    "actor/kl_loss",
    "actor/grad_norm",
    "response_length/mean",
)


def make_log(
    values: Mapping[str, np.ndarray],
    *,
    first_step: int = 1,
    resolution: float = 0.0,
    last_error: Evidence | None = None,
) -> MetricLog:
    series = []
    for name, array in values.items():
        steps = np.arange(first_step, first_step + len(array))
        series.append(
            MetricSeries(
                name,
                name,
                "run.log",
                steps,
                np.asarray(array, dtype=np.float64),
                np.full(len(array), resolution),
                steps + 1000,
            )
        )
    return MetricLog("run.log", "test", None, tuple(series), last_error=last_error)


def autocorrelated(rng: np.random.Generator, num: int, correlation: float) -> np.ndarray:
    values = rng.normal(size=num)
    for i in range(1, num):
        values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * values[i]
    return values


def training_run(
    seed: int, num: int = 500, correlation: float = 0.3, **edits: Any
) -> dict[str, np.ndarray]:
    """Make ten metrics with common trends and AR(1) noise of realistic size.

    ``edits`` plants faults: ``reward=lambda values: …`` and so on.
    """
    rng, time = np.random.default_rng(seed), np.arange(num)

    def z() -> np.ndarray:
        return autocorrelated(rng, num, correlation)

    run = {
        REWARD: 0.6 * (1 - np.exp(-8 * time / num)) + 0.02 * z(),
        "actor/entropy": (0.2 + 0.4 * np.exp(-4 * time / num)) * np.exp(0.05 * z()),
        KL: 1e-3 * (1 - np.exp(-4 * (time + 1) / num)) * np.exp(0.1 * z()),
        GRAD: 0.5 * np.exp(0.2 * z()),
        LENGTH: 300 * np.exp(0.04 * z()),
        "actor/pg_loss": 0.01 * z(),
        "actor/ppo_kl": 0.001 * z(),
        "actor/pg_clipfrac": np.clip(5e-4 + 2e-4 * z(), 0, 1),
        "critic/vf_loss": (0.02 + 0.3 * np.exp(-time / 3)) * np.exp(0.3 * z()),
        "critic/values/mean": 0.3 + 0.05 * z(),
        "critic/score/max": np.ones(num),
        "critic/score/min": np.zeros(num),
        "actor/lr": np.minimum(time / 10, 1) * 1e-6,
        "prompt_length/mean": 100 + 5 * np.sin(time),
        "timing_s/gen": rng.uniform(1, 100, num),
    }
    names = {"reward": REWARD, "kl": KL, "grad": GRAD, "length": LENGTH, "lr": "actor/lr"}
    names["prompt"] = "prompt_length/mean"
    return {**run, **{names[key]: edit(run[names[key]]) for key, edit in edits.items()}}


def compare(reference: Mapping[str, np.ndarray], candidate: Mapping[str, np.ndarray]) -> RungResult:
    return compare_logs(make_log(reference), make_log(candidate))


def finding(result: RungResult, id: str) -> Finding:
    found = [f for f in result.findings if f.id == id]
    assert found, f"no {id} among {[f.id for f in result.findings]}"
    return found[0]


def ids(result: RungResult, *severities: Severity) -> set[str]:
    return {f.id for f in result.findings if f.severity in (severities or tuple(Severity))}


def test_a_run_is_aligned_with_itself() -> None:
    run = training_run(0)
    result = compare(run, run)
    assert result.status is RungStatus.ALIGNED
    assert result.findings == ()


def test_a_short_run_is_aligned_with_itself_and_said_to_be_short() -> None:
    run = training_run(0, num=5)
    result = compare(run, run)
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
    assert "too few steps" in result.summary.en


def test_short_runs_that_differ_are_undecided() -> None:
    result = compare(training_run(1, num=5), training_run(2, num=5))
    assert result.status is RungStatus.UNDECIDED
    assert "Too short to judge" in result.summary.en


@pytest.mark.parametrize(("correlation", "num_seeds"), [(0.0, 30), (0.5, 100), (0.8, 30)])
def test_clean_pairs_give_no_error_and_hardly_a_warning(correlation: float, num_seeds: int) -> None:
    # Measured over 100 seeds x 10 metrics x 500 steps: no error, no warning but an undecided
    # convergence (its 50 last steps are few where they are autocorrelated).
    num_errors = num_warnings = 0
    for seed in range(num_seeds):
        result = compare(
            training_run(seed, correlation=correlation),
            training_run(seed + 1000, correlation=correlation),
        )
        num_errors += bool(ids(result, Severity.ERROR))
        num_warnings += bool(ids(result, Severity.WARNING) - {"curves.reward.convergence_error"})
    assert num_errors <= 1
    assert num_warnings <= 1


@pytest.mark.parametrize(
    ("fault", "id", "rate"),
    [
        ({"grad": lambda v: 3 * v}, "curves.actor.grad_norm.ratio", 1.0),
        ({"kl": lambda v: 2 * v}, "curves.actor.kl_loss.ratio", 1.0),
        ({"length": lambda v: v * np.linspace(1, 2, len(v))}, "response_length.mean.ratio", 0.95),
        ({"length": lambda v: v * 1.3}, "curves.response_length.mean.shift", 0.95),
        (
            {"reward": lambda v: v - 0.08 * np.clip((np.arange(500) - 200) / 300, 0, 1)},
            "curves.reward.convergence_error",
            0.95,
        ),
        (
            {"reward": lambda v: v - 0.05 * (np.arange(500) >= 300)},
            "curves.reward.convergence_error",
            0.95,
        ),
        ({"reward": lambda v: v - 0.024}, "curves.critic.score.mean.shift", 0.95),
    ],
)
def test_planted_shifts_are_found(fault: dict[str, Any], id: str, rate: float) -> None:
    found = sum(
        any(id in name for name in ids(compare(training_run(s), training_run(s + 99, **fault))))
        for s in range(20)
    )
    assert found >= rate * 20


def test_the_onset_of_a_step_change_is_found() -> None:
    change: Edit = lambda v: v * np.where(np.arange(500) < 300, 1, 2)  # noqa: E731
    onsets = []
    for seed in range(10):
        result = compare(training_run(seed), training_run(seed + 99, grad=change))
        symptom = finding(result, "curves.actor.grad_norm.ratio").symptom
        assert symptom is not None
        onsets.append(symptom.step)
    assert abs(np.median(onsets) - 301) <= 3


def test_a_constant_factor_of_two_is_named_with_its_hypothesis() -> None:
    result = compare(training_run(3), training_run(4, grad=lambda v: 2 * v))
    found = finding(result, "curves.actor.grad_norm.ratio")
    assert found.severity is Severity.WARNING
    assert found.symptom is not None and not found.symptom.noise_sized
    assert "constant factor of 2" in found.why.en
    assert "hypothesis" in found.why.en


def test_a_factor_that_is_no_whole_number_gets_no_hypothesis() -> None:
    result = compare(training_run(3), training_run(4, grad=lambda v: 2.5 * v))
    assert "constant factor" not in finding(result, "curves.actor.grad_norm.ratio").why.en


def test_a_schedule_that_differs_is_an_error_at_its_first_step() -> None:
    result = compare(training_run(5), training_run(6, lr=lambda v: np.where(v < 1e-6, v, 2e-6)))
    found = finding(result, "curves.actor.lr.differs")
    assert found.severity is Severity.ERROR
    assert found.symptom is not None and found.symptom.step == 11
    assert (found.reference, found.candidate) == (1e-6, 2e-6)
    assert [(e.side, e.source, e.line) for e in found.evidence] == [
        (Side.REFERENCE, "run.log", 1011),
        (Side.CANDIDATE, "run.log", 1011),
    ]
    assert result.status is RungStatus.DIVERGED


def test_a_schedule_logged_one_step_apart_is_a_warning() -> None:
    late: Edit = lambda v: np.concatenate([[0.0], v[:-1]])  # noqa: E731
    found = finding(compare(training_run(5), training_run(6, lr=late)), "curves.actor.lr.differs")
    assert found.severity is Severity.WARNING
    assert "one step apart" in found.why.en


def test_other_prompts_are_an_error() -> None:
    result = compare(training_run(5), training_run(6, prompt=lambda v: v[::-1]))
    assert finding(result, "curves.prompt_length.mean.differs").severity is Severity.ERROR


def test_a_value_printed_with_three_decimals_equals_what_it_rounds() -> None:
    printed = make_log(
        {"actor/lr": np.zeros(5), "actor/kl_coef": np.full(5, 0.001)}, resolution=1e-3
    )
    complete = make_log({"actor/lr": np.full(5, 1e-6), "actor/kl_coef": np.full(5, 0.0012)})
    assert compare_logs(printed, complete).status is RungStatus.ALIGNED
    larger = make_log({"actor/lr": np.full(5, 1e-3)})
    assert compare_logs(printed, larger).status is RungStatus.DIVERGED


def test_float32_rounding_of_tensorboard_is_no_difference() -> None:
    run = training_run(7)
    rounded = {name: values.astype(np.float32).astype(np.float64) for name, values in run.items()}
    result = compare(run, rounded)
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())


def test_time_and_memory_are_never_findings() -> None:
    run = training_run(8)
    slower = {**run, "timing_s/gen": run["timing_s/gen"] * 50, "perf/mfu/actor": np.ones(500)}
    assert compare(run, slower).findings == ()


def test_a_reward_that_differs_from_the_first_step_on_is_an_error() -> None:
    rng = np.random.default_rng(9)
    reference, candidate = (
        {REWARD: level + 0.02 * rng.normal(size=12)} for level in (0.015, -0.36)
    )
    result = compare(reference, candidate)
    found = finding(result, "curves.reward.first_step")
    assert result.status is RungStatus.DIVERGED
    assert found.symptom is not None
    assert (found.symptom.step, found.symptom.noise_sized) == (1, False)
    twin = {REWARD: 0.015 + 0.02 * rng.normal(size=12)}
    assert "curves.reward.first_step" not in ids(compare(reference, twin))


def test_two_steps_are_enough_when_the_batch_is_large() -> None:
    def short_run(reward: float, num_responses: int) -> dict[str, np.ndarray]:
        return {
            REWARD: np.array([reward, reward]),
            "critic/score/max": np.ones(2),
            "critic/score/min": -np.ones(2),
            "prompt_length/mean": np.array([100.0, 110.0]),
            "response_length/mean": np.array([300.0, 300.0]),
            "perf/total_num_tokens": num_responses * np.array([400.0, 410.0]),
        }

    assert "curves.reward.first_step" in ids(
        compare(short_run(0.015, 1024), short_run(-0.36, 1024))
    )
    assert "curves.reward.first_step" not in ids(
        compare(short_run(0.015, 1024), short_run(-0.05, 1024))
    )
    assert "curves.reward.first_step" not in ids(compare(short_run(0.3, 16), short_run(-0.1, 16)))


def test_disagreement_of_trainer_and_rollout_is_compared_by_magnitude() -> None:
    name = "training/rollout_probs_diff_mean"
    result = compare({name: np.array([4e-10, 4e-10])}, {name: np.array([1.6e-6, 1.7e-6])})
    found = finding(result, "curves.training.rollout_probs_diff_mean.magnitude")
    assert found.severity is Severity.WARNING
    assert found.symptom is not None
    assert (found.symptom.step, found.symptom.rung.value) == (1, "forward")
    # Within float32 rounding of a probability, and within one order of magnitude: no finding.
    assert compare({name: np.full(2, 1e-10)}, {name: np.full(2, 5e-8)}).findings == ()
    assert compare({name: np.full(2, 1e-3)}, {name: np.full(2, 8e-3)}).findings == ()


def test_probabilities_that_disagree_by_more_than_a_hundredth_are_an_error() -> None:
    name = "training/rollout_probs_diff_mean"
    result = compare({name: np.full(5, 0.001)}, {name: np.full(5, 0.02)})
    assert ids(result, Severity.ERROR) == {"curves.training.rollout_probs_diff_mean.magnitude"}


def test_the_order_in_which_metrics_become_nan_is_told() -> None:
    def nan_from(step: int) -> Edit:
        return lambda v: np.where(np.arange(1, len(v) + 1) < step, v, np.nan)

    broken = training_run(11, grad=nan_from(83), kl=nan_from(84), reward=lambda v: v)
    result = compare(training_run(10), broken)
    found = finding(result, "curves.nonfinite.candidate")
    assert found.severity is Severity.ERROR
    assert found.symptom is not None
    assert (found.symptom.metric, found.symptom.step) == (GRAD, 83)
    assert "actor/grad_norm (83), actor/kl_loss (84)" in found.why.en
    assert found.candidate is not None and scalar_to_json(found.candidate) == "NaN"


def test_a_nan_explains_the_reward_that_breaks_a_step_later() -> None:
    def from_step(step: int, value: float) -> Edit:
        return lambda v: np.where(np.arange(1, len(v) + 1) < step, v, value)

    for step in (22, 23, 27):
        broken = training_run(11, 40, grad=from_step(21, np.nan), reward=from_step(step, -1.0))
        result = compare(training_run(10, 40), broken)
        assert "curves.critic.score.mean.collapse" in ids(result, Severity.ERROR)
        first = earliest_symptom(result.findings)
        assert first is not None and first.id == "curves.nonfinite.candidate"


def test_a_metric_that_never_was_a_number_on_one_side_is_an_error() -> None:
    run, broken = training_run(10), training_run(11, grad=lambda v: v * np.nan)
    found = finding(compare(run, broken), "curves.nonfinite.candidate")
    assert found.severity is Severity.ERROR
    assert found.symptom is not None and (found.symptom.metric, found.symptom.step) == (GRAD, 1)
    twin = training_run(10, grad=lambda v: v * np.nan)
    assert ids(compare(twin, broken), Severity.ERROR) == set()  # on neither side: not computed
    unknown = {**run, "my/own": np.full(500, np.nan)}
    assert ids(compare({**run, "my/own": np.ones(500)}, unknown), Severity.ERROR) == set()


def test_nan_at_the_same_step_on_both_sides_is_a_note() -> None:
    run = training_run(12, grad=lambda v: np.where(np.arange(len(v)) == 50, np.inf, v))
    result = compare(run, run)
    assert ids(result) == {"curves.nonfinite.both"}
    assert result.status is RungStatus.ALIGNED


def test_nan_is_never_equal_to_a_number() -> None:
    run = training_run(12, num=5)
    one = {**run, "actor/lr": np.array([0, 1e-7, np.nan, 3e-7, 4e-7])}
    other = {**run, "actor/lr": np.array([0, 1e-7, 0.0, 3e-7, 4e-7])}
    found = finding(compare(one, other), "curves.actor.lr.differs")
    assert found.symptom is not None and found.symptom.step == 3


def test_a_metric_stuck_on_one_side_is_found() -> None:
    stuck = training_run(14, length=lambda v: np.where(np.arange(len(v)) < 200, v, 257.0))
    stuck["response_length/clip_ratio"] = np.where(np.arange(500) < 200, 0.01, 1.0)
    reference = training_run(13)
    reference["response_length/clip_ratio"] = np.full(500, 0.01)
    found = finding(compare(reference, stuck), "curves.response_length.mean.constant")
    assert found.severity is Severity.WARNING
    assert found.candidate == 257.0
    assert found.symptom is not None and found.symptom.step == 201
    assert "every response is cut off" in found.why.en


def test_a_metric_that_is_zero_throughout_was_not_computed() -> None:
    run, other = training_run(15), training_run(16)
    other["actor/entropy"] = np.zeros(500)
    found = finding(compare(run, other), "curves.actor.entropy.constant")
    assert (found.severity, found.symptom) == (Severity.INFO, None)


def test_a_policy_loss_that_swings_twice_as_far_is_a_note() -> None:
    run, doubled = training_run(17), training_run(18)
    assert ids(compare(run, doubled)) == set()
    doubled["actor/pg_loss"] = 2 * doubled["actor/pg_loss"]
    found = finding(compare(run, doubled), "curves.actor.pg_loss.amplitude")
    assert (found.severity, found.symptom) == (Severity.INFO, None)
    reference, candidate = float(found.reference), float(found.candidate)  # type: ignore[arg-type]
    # Geometric mean of |N(0, 1)|: exp(-(gamma + log 2) / 2) = 0.5299.
    assert (reference, candidate) == pytest.approx((0.0053, 0.0106), rel=0.1)


def test_swings_of_clean_pairs_hardly_ever_differ() -> None:
    # Measured over 200 pairs: none at 500 steps, 7 % at 30 of autocorrelation 0.8.
    pairs = ([training_run(s + k, 200, 0.5) for k in (0, 500)] for s in range(30))
    assert sum(any("amplitude" in id for id in ids(compare(*pair))) for pair in pairs) <= 1


def test_a_spike_on_one_side_is_a_note() -> None:
    spiking = training_run(18, grad=lambda v: np.where(np.arange(len(v)) == 123, 50 * v, v))
    found = finding(compare(training_run(17), spiking), "curves.actor.grad_norm.spikes")
    assert found.severity is Severity.INFO
    assert "step 124" in found.title.en


def test_runs_counted_from_0_and_from_1_are_paired_and_it_is_said() -> None:
    run = training_run(19)
    result = compare_logs(make_log(run, first_step=0), make_log(run, first_step=1))
    assert ids(result) == {"curves.step_numbering"}
    assert result.status is RungStatus.ALIGNED
    assert "prompt lengths agree" in result.findings[0].title.en


def test_without_prompt_lengths_the_numbering_is_said_to_be_assumed() -> None:
    run = {REWARD: training_run(20)[REWARD]}
    result = compare_logs(make_log(run, first_step=0), make_log(run, first_step=1))
    assert "taken as the same step" in finding(result, "curves.step_numbering").title.en


def test_a_run_whose_prompts_agree_unshifted_is_not_shifted() -> None:
    run = training_run(21)
    late = {name: values[1:] for name, values in run.items()}
    result = compare_logs(make_log(run, first_step=0), make_log(late, first_step=1))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())


def test_one_sided_metrics_are_listed_and_are_no_findings() -> None:
    run = training_run(22)
    result = compare(run, {**run, "my/own": np.ones(500)})
    assert result.findings == ()
    table = next(t for t in result.tables if t.id == "curves.one_sided")
    assert [str(cell) for cell in table.rows[0]] == ["my/own", "candidate", "my/own", "1", "500"]


def test_a_log_without_a_step_is_missing_and_its_last_error_quoted() -> None:
    error = Evidence("run.log", Side.CANDIDATE, 17, text="CUDA out of memory")
    result = compare_logs(make_log(training_run(23)), make_log({}, last_error=error))
    assert result.status is RungStatus.MISSING
    assert result.missing[0].side == "candidate"
    assert "run.log:17: CUDA out of memory" in result.summary.en


def test_runs_without_a_common_step_are_not_compared() -> None:
    run = training_run(24)
    result = compare_logs(make_log(run), make_log(run, first_step=2001))
    assert result.status is RungStatus.MISSING
    assert "1..500" in result.summary.en and "2001..2500" in result.summary.en


def test_tables_are_in_both_languages() -> None:
    result = compare(
        training_run(25), {**training_run(26, grad=lambda v: 3 * v), "my/own": np.ones(9)}
    )
    tables = {table.id: table for table in result.tables}
    by_name = {str(row[0]): row for row in tables["curves.metrics"].rows}
    verdict = by_name[GRAD][-1]
    assert verdict == Text(
        "warning: curves.actor.grad_norm.ratio", "警告：curves.actor.grad_norm.ratio"
    )
    heads = [column.key for column in tables["curves.metrics"].columns]
    kind = heads.index("class")
    assert by_name[GRAD][kind] == Text("constant ratio", "恒定比值")
    assert by_name[LENGTH][kind] == Text("equal within noise", "在噪声范围内一致")
    assert str(by_name["critic/score/max"][kind]) == "equal"
    assert str(by_name["timing_s/gen"][kind]) == "not judged"
    for row in tables["curves.acceptance"].rows:
        criterion, outcome, formula = row[0], row[-2], row[-1]
        assert isinstance(criterion, Text) and isinstance(formula, Text)
        assert outcome == Text("pass", "通过")
    assert tables["curves.one_sided"].rows[0][1] == Text("candidate", "被测")


def test_the_curves_with_findings_come_first() -> None:
    result = compare(training_run(25), training_run(26, grad=lambda v: 3 * v))
    assert result.curves[0].metric == GRAD
    assert result.curves[0].finding_id == "curves.actor.grad_norm.ratio"
    assert len(result.curves) == 12
    assert len(result.curves[0].reference.values) == len(result.curves[0].reference.smoothed) == 500


def test_the_same_inputs_give_the_same_result() -> None:
    pair = training_run(27), training_run(28, grad=lambda v: 3 * v)
    assert dataclasses.astuple(compare(*pair)) == dataclasses.astuple(compare(*pair))


FLOATS = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=60)
NAMES = st.sampled_from([REWARD, KL, GRAD, LENGTH, "actor/lr", "prompt_length/mean", "x", ""])


@given(
    st.dictionaries(NAMES, FLOATS, max_size=4),
    st.dictionaries(NAMES, FLOATS, max_size=4),
    st.integers(0, 3),
)
def test_any_values_are_compared_without_an_error(
    reference: dict[str, list[float]], candidate: dict[str, list[float]], first_step: int
) -> None:
    logs = (
        make_log({k: np.array(v) for k, v in reference.items()}),
        make_log({k: np.array(v) for k, v in candidate.items()}, first_step=first_step),
    )
    assert isinstance(compare_logs(*logs), RungResult)
