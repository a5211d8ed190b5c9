"""Every class of difference, planted and with a clean twin; relations, order of onset, axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from align.core.errors import RunError
from align.core.finding import Finding, Severity
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import RungResult
from align.curves.axis import Axis, progress, realigned
from align.curves.curve_class import CurveClass
from align.curves.method import Method
from align.curves.relations import broken_relations
from align.curves.rung import compare_logs
from align.curves.segments import gaps
from align.curves.shape import change_points, shape_of
from align.curves.spikes import rate_words

REWARD, KL, NORM, LENGTH = (
    "critic/score/mean",
    "actor/ppo_kl",
    "actor/grad_norm",
    "response_length/mean",
)
NUM, ONSET = 500, 300
TIME = np.arange(NUM)
Curves = dict[str, np.ndarray]


def ar1(rng: np.random.Generator, num: int = NUM, correlation: float = 0.3) -> np.ndarray:
    values = rng.normal(size=num)
    for i in range(1, num):
        values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * values[i]
    return values


def run(seed: int) -> Curves:
    rng = np.random.default_rng(seed)
    return {
        REWARD: 0.6 * (1 - np.exp(-TIME / 80)) + 0.02 * ar1(rng),
        NORM: 0.3 * np.exp(0.15 * ar1(rng)),
        LENGTH: 300 * np.exp(0.03 * ar1(rng)),
        KL: 1e-3 * ar1(rng),
        "actor/log_prob": -0.9 + 0.01 * ar1(rng),
    }


def log(curves: Mapping[str, np.ndarray], first: int = 1) -> MetricLog:
    series = []
    for name, values in curves.items():
        steps, zeros = np.arange(first, first + len(values)), np.zeros(len(values))
        series.append(MetricSeries(name, name, "run.log", steps, values, zeros, steps))
    return MetricLog("run.log", "test", None, tuple(series))


def compare(reference: Curves, candidate: Curves) -> RungResult:
    return compare_logs(log(reference), log(candidate))


def cells(result: RungResult, table: str, row: str) -> dict[str, object]:
    found = next(t for t in result.tables if t.id == table)
    values = next(r for r in found.rows if str(r[0]) == row)
    return {column.key: value for column, value in zip(found.columns, values, strict=True)}


def class_of(result: RungResult, metric: str) -> CurveClass:
    words = str(cells(result, "curves.metrics", metric)["class"])
    return next(c for c in CurveClass if str(c.words) == words)


def finding(result: RungResult, id: str) -> Finding:
    found = [f for f in result.findings if f.id == id]
    assert found, f"no {id} among {[f.id for f in result.findings]}"
    return found[0]


def halved(values: np.ndarray) -> np.ndarray:
    return np.where(TIME < ONSET, values, values * 0.2)


def late(values: np.ndarray, new: float) -> np.ndarray:
    return np.where(TIME < ONSET, values, new)


PLANTED: dict[CurveClass, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    CurveClass.OFFSET: (REWARD, lambda v: v - 0.03),
    CurveClass.DRIFT: (REWARD, lambda v: v - 0.09 * np.clip((TIME - 100) / 400, 0, 1)),
    CurveClass.STEP: (REWARD, lambda v: v - 0.08 * (TIME >= ONSET)),
    CurveClass.COLLAPSE: (REWARD, halved),
    CurveClass.CONSTANT_RATIO: (NORM, lambda v: 2 * v),
    CurveClass.NONFINITE: (NORM, lambda v: late(v, math.nan)),
    CurveClass.SATURATION: (LENGTH, lambda v: late(v, 1024.0)),
    CurveClass.NOT_COMPUTED: (NORM, lambda v: 0 * v),
    CurveClass.DEFINITION: (KL, np.abs),
    CurveClass.SPIKES: (NORM, lambda v: np.where(TIME % 50 == 25, 40 * v, v)),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_each_class_is_named_and_its_clean_twin_is_within_noise(kind: CurveClass) -> None:
    metric, plant = PLANTED[kind]
    reference, candidate = run(1), run(2)
    assert class_of(compare(reference, candidate), metric) is CurveClass.WITHIN_NOISE
    candidate[metric] = plant(candidate[metric])
    assert class_of(compare(reference, candidate), metric) is kind


@pytest.mark.parametrize("kind", [CurveClass.STEP, CurveClass.COLLAPSE, CurveClass.NONFINITE])
def test_the_table_dates_what_it_names(kind: CurveClass) -> None:
    metric, plant = PLANTED[kind]
    reference, candidate = run(3), run(4)
    candidate[metric] = plant(candidate[metric])
    onset = cells(compare(reference, candidate), "curves.metrics", metric)["onset"]
    assert isinstance(onset, int) and abs(onset - (ONSET + 1)) <= 10


def test_equal_values_in_another_order_are_a_permutation_and_the_same_ones_are_equal() -> None:
    reference = run(5)
    candidate = {**reference, REWARD: np.random.default_rng(1).permutation(reference[REWARD])}
    result = compare(reference, candidate)
    assert class_of(result, REWARD) is CurveClass.PERMUTATION
    assert finding(result, "curves.critic.score.mean.permuted").severity is Severity.WARNING
    assert class_of(compare(reference, reference), REWARD) is CurveClass.EQUAL


@pytest.mark.parametrize(
    ("metric", "change", "rule"),
    [
        ("actor/log_prob", np.exp, "exponential"),
        ("actor/log_prob", lambda v: -v, "negated"),
        ("actor/log_prob", lambda v: v / np.log(2), "nats_to_bits"),
        (NORM, lambda v: 100 * v, "percent"),
        (KL, np.abs, "absolute"),
    ],
)
def test_a_change_of_definition_is_named_in_the_same_run_and_in_another(
    metric: str, change: object, rule: str
) -> None:
    for other in (run(6), run(7)):
        candidate = {**other, metric: change(other[metric])}  # type: ignore[operator]
        found = [
            f
            for f in compare(run(6), candidate).findings
            if f.id == f"curves.{metric.replace('/', '.')}.definition"
        ]
        assert found and rule in found[0].title.en
        assert found[0].symptom is None  # training may be the same


def test_a_factor_of_two_is_no_change_of_definition() -> None:
    candidate = run(9)
    candidate[NORM] = 2 * candidate[NORM]
    assert not [f for f in compare(run(8), candidate).findings if f.id.endswith(".definition")]


def test_clean_pairs_are_given_no_class_that_is_apart() -> None:
    for seed in range(20):
        result = compare(run(100 + seed), run(200 + seed))
        for metric in run(0):
            assert not class_of(result, metric).is_apart


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_an_offset_of_autocorrelated_noise_is_hardly_ever_called_a_step_or_drift(
    correlation: float,
) -> None:
    rng = np.random.default_rng(11)
    shapes = [shape_of(0.05 + 0.02 * ar1(rng, 300, correlation)).kind for _ in range(60)]
    assert shapes.count(CurveClass.OFFSET) >= 57


@pytest.mark.parametrize(
    ("course", "named", "least"),
    [
        (np.full(NUM, 0.024), CurveClass.OFFSET, 18),
        (0.048 * (TIME >= ONSET), CurveClass.STEP, 10),
        (0.09 * np.clip((TIME - 100) / 400, 0, 1), CurveClass.DRIFT, 18),
        (0.03 * np.clip((TIME - 200) / 150, 0, 1), CurveClass.DRIFT, 2),
    ],
)
def test_a_course_is_named_right_or_left_open_and_hardly_ever_named_wrong(
    course: np.ndarray, named: CurveClass, least: int
) -> None:
    # Noise of two runs of sigma 0.02; the last drift is 5 % within 150 steps: few values tell.
    left_open = {
        CurveClass.OFFSET: {CurveClass.SHIFT},
        CurveClass.STEP: {CurveClass.STEP_OR_DRIFT},
        CurveClass.DRIFT: {CurveClass.STEP_OR_DRIFT, CurveClass.SHIFT},
    }[named]
    rng = np.random.default_rng(31)
    kinds = [shape_of(course + 0.028 * ar1(rng, NUM, rng.uniform(0, 0.7))).kind for _ in range(20)]
    assert kinds.count(named) >= least
    assert sum(kind not in {named, *left_open} for kind in kinds) <= 1


def test_a_drift_too_small_to_date_is_an_offset_or_a_drift() -> None:
    # One that begins at the first step, in noise that wanders: the level may always have been so.
    rng = np.random.default_rng(32)
    kinds = [shape_of(0.048 * TIME / NUM + 0.028 * ar1(rng, NUM, 0.8)).kind for _ in range(20)]
    assert kinds.count(CurveClass.SHIFT) >= 3 and kinds.count(CurveClass.STEP) <= 1


def test_spikes_that_lift_the_mean_are_spikes_and_no_offset() -> None:
    for seed in range(10):
        reference, candidate = run(300 + seed), run(400 + seed)
        where = np.random.default_rng(seed).choice(np.arange(10, NUM - 10), 12, replace=False)
        candidate[NORM][where] *= 30
        assert class_of(compare(reference, candidate), NORM) is CurveClass.SPIKES


def test_ruptures_finds_the_levels_and_none_in_noise_alone() -> None:
    rng = np.random.default_rng(12)
    levels = np.repeat([0.0, 1.0, -1.0], 100) + 0.2 * ar1(rng, 300)
    assert [round(at, -1) for at in change_points(levels)] == [100, 200]
    flat = [change_points(ar1(np.random.default_rng(s), 300, 0.6)) for s in range(20)]
    assert sum(len(found) > 0 for found in flat) <= 2


def test_a_step_that_ends_a_drift_free_series_is_dated_to_its_place() -> None:
    shape = shape_of(0.01 * ar1(np.random.default_rng(13), 200) + 0.1 * (np.arange(200) >= 120))
    assert shape.kind is CurveClass.STEP and abs(shape.end - 120) <= 2


def test_the_rate_of_spikes_has_wilsons_interval() -> None:
    # Brown, Cai, DasGupta 2001, Wilson: 0 of 10 gives 0 to 0.2775; 5 of 10 gives 0.2366 to 0.7634.
    assert rate_words(0, 10) == "0.0% (0.0% – 27.8%)"
    assert rate_words(5, 10) == "50.0% (23.7% – 76.3%)"


def test_the_spike_rate_of_the_log_prob_error_is_told_although_the_reward_is_equal() -> None:
    # A field report: every step spikes with the fused kernels, 6.4 % with both of them off.
    name = "train/token_mult_prob_error"
    clean = {**run(14), name: 1.012 + 0.002 * np.abs(ar1(np.random.default_rng(1)))}
    fused = {**run(15), name: np.full(NUM, 38565.0)}
    found = finding(compare(clean, fused), "curves.train.token_mult_prob_error.spikes")
    assert found.severity is Severity.WARNING
    row = cells(compare(clean, fused), "curves.spikes", name)
    assert (row["reference"], row["candidate"]) == (0, NUM)
    assert "curves.spikes" not in {
        t.id for t in compare(clean, {**run(15), name: clean[name]}).tables
    }


def test_what_moved_first_is_said_and_where_two_onsets_touch_it_is_not_known() -> None:
    reference, candidate = run(16), run(17)
    candidate[NORM] = np.where(TIME < 200, candidate[NORM], 5 * candidate[NORM])
    candidate[REWARD] = np.where(TIME < 320, candidate[REWARD], candidate[REWARD] - 0.3)
    result = compare(reference, candidate)
    found = finding(result, "curves.order")
    assert found.title.en.startswith("actor/grad_norm moved first (step 201")
    assert str(cells(result, "curves.order", REWARD)["order"]) == "later"
    candidate[REWARD] = np.where(TIME < 200, run(17)[REWARD], run(17)[REWARD] - 0.3)
    together = compare(reference, candidate)
    order = {str(cells(together, "curves.order", m)["order"]) for m in (REWARD, NORM)}
    assert order == {"first", "not known"}


def test_a_difference_that_follows_another_by_seven_steps_is_told() -> None:
    reference, candidate = run(18), run(19)
    pulse = ar1(np.random.default_rng(3), NUM + 7, 0.0)
    candidate[NORM] = reference[NORM] * np.exp(0.7 + 0.2 * pulse[7:])
    candidate[LENGTH] = reference[LENGTH] * np.exp(0.2 + 0.05 * pulse[:-7])
    rows = compare(reference, candidate)
    lag = str(cells(rows, "curves.order", LENGTH)["lag"]) or str(
        cells(rows, "curves.order", NORM)["lag"]
    )
    assert lag.startswith(("+7", "-7"))


def test_runs_that_start_equal_and_part_in_the_loss_are_told_apart_there() -> None:
    reference, candidate = run(20), run(21)
    for name in (REWARD, LENGTH):
        candidate[name][0] = reference[name][0]
    found = finding(compare(reference, candidate), "curves.first_difference")
    assert "actor/grad_norm" in found.title.en and found.severity is Severity.INFO
    candidate[NORM][0], candidate[KL][0] = reference[NORM][0], reference[KL][0]
    candidate["actor/log_prob"][0] = reference["actor/log_prob"][0]
    assert not [
        f for f in compare(reference, candidate).findings if f.id == "curves.first_difference"
    ]


def test_a_ratio_that_equals_a_configured_size_names_it() -> None:
    candidate = run(23)
    candidate[NORM] = 4 * candidate[NORM]
    sizes = {"actor.context_parallel_size": 1}, {"actor.context_parallel_size": 4}
    result = compare_logs(log(run(22)), log(candidate), sizes)
    assert "context-parallel size" in finding(result, "curves.actor.grad_norm.ratio").why.en
    unconfigured = compare(run(22), candidate)
    assert "power of two" in finding(unconfigured, "curves.actor.grad_norm.ratio").why.en


ON_POLICY = {"derived.on_policy": True}


def names_of(curves: Curves, settings: Mapping[str, bool] | None = None) -> list[str]:
    return [b.name for b in broken_relations(log(curves), settings or {})]


def test_one_update_per_rollout_clips_nothing() -> None:
    zeros = np.zeros(20)
    clipped = np.where(np.arange(20) == 7, 3e-4, 0.0)
    assert names_of({"actor/pg_clipfrac": zeros, KL: 1e-5 + zeros}, ON_POLICY) == []
    assert names_of({"actor/pg_clipfrac": clipped}, ON_POLICY) == ["on_policy"]
    assert names_of({"actor/pg_clipfrac": clipped}) == []  # not known to be on-policy
    assert names_of({KL: 0.05 + zeros}, ON_POLICY) == ["on_policy"]
    (broken,) = broken_relations(log({"actor/pg_clipfrac": clipped}), ON_POLICY)
    assert (broken.step, broken.num, broken.of) == (8, 1, 20)


def test_without_any_advantage_the_policy_loss_is_zero() -> None:
    zeros, loss = np.zeros(10), np.full(10, 0.02)
    flat = {"critic/advantages/max": zeros, "critic/advantages/min": zeros}
    assert names_of({**flat, "actor/pg_loss": zeros}) == []
    assert names_of({**flat, "actor/pg_loss": loss}) == ["no_advantage"]
    assert names_of({"critic/advantages/max": 1 + zeros, **{"actor/pg_loss": loss}}) == []


def test_the_reward_is_the_same_sum_of_its_rules_at_every_step() -> None:
    rng = np.random.default_rng(24)
    rules = {f"rewards/{name}/mean": rng.uniform(size=40) for name in ("format", "answer")}
    total = 0.2 * rules["rewards/format/mean"] + rules["rewards/answer/mean"]
    assert names_of({**rules, "critic/rewards/mean": total}) == []
    wrong = np.where(np.arange(40) == 30, total + 0.3, total)
    assert names_of({**rules, "critic/rewards/mean": wrong}) == ["sum_of_rules"]
    (broken,) = broken_relations(log({**rules, "critic/rewards/mean": wrong}), {})
    assert (broken.step, broken.num) == (31, 1) and "0.2 rewards/format" in broken.words.en


def test_a_batch_at_the_length_limit_is_cut_off() -> None:
    length = np.where(np.arange(40) < 20, 100.0, 257.0)
    at = {"response_length/mean": length, "response_length/max": length}
    ratio = (length == 257).astype(float)
    assert names_of({**at, "response_length/clip_ratio": ratio}) == []
    assert "clip_ratio" in names_of({**at, "response_length/clip_ratio": 0 * ratio})


def test_a_relation_one_side_breaks_is_a_warning_and_one_both_break_a_note() -> None:
    zeros, loss = np.zeros(40), np.full(40, 0.02)
    flat = {"critic/advantages/max": zeros, "critic/advantages/min": zeros}
    good, bad = {**flat, "actor/pg_loss": zeros}, {**flat, "actor/pg_loss": loss}
    assert finding(compare(good, bad), "curves.relation.no_advantage").severity is Severity.WARNING
    assert finding(compare(bad, bad), "curves.relation.no_advantage").severity is Severity.INFO
    assert not [f for f in compare(good, good).findings if "relation" in f.id]


def outcomes(result: RungResult) -> dict[str, str]:
    """Read what acceptance says of each criterion."""
    table = next(t for t in result.tables if t.id == "curves.acceptance")
    keys = [column.key for column in table.columns]
    return {
        str(row[keys.index("criterion")]): str(row[keys.index("outcome")]) for row in table.rows
    }


def test_half_batches_lag_by_step_and_agree_by_tokens() -> None:
    steps = np.arange(1, 401)
    course = lambda tokens: 0.6 * (1 - np.exp(-tokens / 4e6))  # noqa: E731
    rng = np.random.default_rng(25)
    full = {
        REWARD: course(2e4 * steps) + 0.01 * rng.normal(size=400),
        "perf/total_num_tokens": np.full(400, 2e4),
    }
    half = {
        REWARD: course(1e4 * np.arange(1, 801)) + 0.01 * rng.normal(size=800),
        "perf/total_num_tokens": np.full(800, 1e4),
    }
    by_step = compare_logs(log(full), log(half))
    by_tokens = compare_logs(log(full), log(half), method=Method(axis=Axis.TOKENS))
    assert class_of(by_step, REWARD).is_apart
    assert class_of(by_tokens, REWARD) is CurveClass.WITHIN_NOISE
    assert "Aligned by tokens" in by_tokens.summary.en
    assert set(outcomes(by_step).values()) == {"fail"}
    assert set(outcomes(by_tokens).values()) == {"pass"}
    assert "Acceptance at equal tokens" in by_tokens.summary.en


def test_an_axis_that_is_not_recorded_is_refused_with_its_name() -> None:
    with pytest.raises(RunError, match=r"timing_s/step"):
        progress(log({REWARD: np.zeros(5)}), Axis.HOURS, "candidate")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(1, 9), min_size=3, max_size=30),
    st.lists(st.floats(1, 9), min_size=3, max_size=30),
)
def test_realigning_keeps_a_constant_and_a_total(ours: list[float], theirs: list[float]) -> None:
    values = np.linspace(0.0, 1.0, len(theirs))
    name = "perf/total_num_tokens"
    reference = log({name: np.array(ours), REWARD: np.zeros(len(ours))})
    candidate = log({name: np.array(theirs), REWARD: values, NORM: np.full(len(theirs), 3.0)})
    moved = realigned(reference, candidate, Axis.TOKENS)
    flat, reward = moved.get(NORM), moved.get(REWARD)
    if flat is not None and reward is not None:
        np.testing.assert_allclose(flat.values, 3.0, rtol=1e-9)
        # Over what both cover the integral along the axis is the candidate's own.
        widths = np.array(ours)[: len(reward)]
        inside = float(np.sum(reward.values * widths))
        ends = np.concatenate([[0.0], np.cumsum(theirs)])
        whole = np.interp(widths.sum(), ends, np.concatenate([[0.0], np.cumsum(values * theirs)]))
        assert inside == pytest.approx(float(whole), rel=1e-9, abs=1e-12)


def test_warm_up_leaves_the_first_steps_out_and_says_so() -> None:
    reference, candidate = run(26), run(27)
    candidate[NORM][:10] *= 50
    whole = compare(reference, candidate)
    cut = compare_logs(log(reference), log(candidate), method=Method(warm_up=12))
    assert cells(cut, "curves.metrics", NORM)["steps"] == NUM - 12
    assert cells(whole, "curves.metrics", NORM)["steps"] == NUM
    assert "12 warm-up steps left out" in cut.summary.en


def test_a_chosen_metric_is_compared_alone() -> None:
    result = compare_logs(log(run(28)), log(run(29)), method=Method(metrics=("actor/grad*",)))
    table = next(t for t in result.tables if t.id == "curves.metrics")
    assert [row[0] for row in table.rows] == [NORM]


def test_gaps_and_repeats_of_a_resumed_run_are_told() -> None:
    steps = np.array([1, 2, 3, 4, 8, 9, 10])
    zeros = np.zeros(len(steps))
    broken = MetricSeries(REWARD, REWARD, "a.log", steps, zeros, zeros, steps)
    assert gaps(broken) == ((5, 7),)
    every_fifth = MetricSeries(REWARD, REWARD, "a.log", np.arange(0, 50, 5), *[np.zeros(10)] * 3)  # type: ignore[arg-type]
    assert gaps(every_fifth) == ()
    resumed = MetricLog("a.log", "test", None, (broken,), num_overwritten=4)
    found = finding(compare_logs(log({REWARD: np.zeros(10)}), resumed), "curves.segments.candidate")
    assert "steps 5–7 are missing" in found.title.en and "4 values" in found.title.en
