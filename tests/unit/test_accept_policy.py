"""Acceptance under a declared policy: clauses, noise floor, tasks, certificate.

Expected errors are worked out by hand from flat curves; the field's numbers are its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from align.acceptance.curve_clauses import Runs, judge_curve
from align.acceptance.judge import judge
from align.acceptance.judgement import Judgement
from align.acceptance.policy import NEEDS, POLICIES, Formula, Policy, read_policy
from align.cli.main import cli
from align.core.errors import ConfigError
from align.core.metric import MetricLog, MetricSeries
from align.curves.accept import ABSOLUTE_LIMIT, CONVERGENCE_LIMIT, HORIZON_S, HORIZON_STEPS
from align.curves.criterion import Outcome, detectable_error
from align.curves.error_formulas import allowed_failing_steps
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from reports.render import certificate as certificate_page

STEPS = 500


def noisy(seed: int, level: float = 0.6, steps: int = STEPS) -> np.ndarray:
    return level + 0.02 * np.random.default_rng(seed).normal(size=steps)


def log_of(values: np.ndarray, name: str = "critic/score/mean") -> MetricLog:
    steps, zeros = np.arange(1, len(values) + 1), np.zeros(len(values))
    series = MetricSeries(name, name, "run.log", steps, values, zeros, steps)
    return MetricLog("run.log", "test", None, (series,))


def run_of(path: Path, values: np.ndarray, **rollouts: np.ndarray) -> RunData:
    """Write a run folder: metrics, and two scores a step and task with the given mean."""
    path.mkdir()
    rows = [
        json.dumps({"step": step, "data": {"critic/score/mean": float(value)}})
        for step, value in enumerate(values, 1)
    ]
    (path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    lines = [
        json.dumps(
            {
                "input": f"q{step}",
                "output": f"a{step}{share}",
                "score": share * float(score),
                "step": step,
                "data_source": task,
            }
        )
        for task, scores in rollouts.items()
        for step, score in enumerate(scores, 1)
        for share in (0, 2)
    ]
    if lines:
        (path / "rollout.jsonl").write_text("\n".join(lines) + "\n")
    return load(path)


def load(path: Path) -> RunData:
    return RunData(discover([path]))


def results(
    policy: Policy,
    reference: np.ndarray,
    candidate: np.ndarray,
    *repeats: np.ndarray,
    name: str = "critic/score/mean",
) -> list[Outcome]:
    runs = Runs.of(
        log_of(reference, name), log_of(candidate, name), [log_of(r, name) for r in repeats]
    )
    clauses = (c for c in policy.clauses if c.formula is not Formula.EVALUATION)
    return [judge_curve(clause, runs, policy)[0].outcome for clause in clauses]


def policy_file(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return read_policy(str(path))


def test_the_field_policy_is_what_the_curves_rung_judges_by() -> None:
    policy = read_policy("field")
    limits = {clause.formula: clause.limit for clause in policy.clauses}
    assert limits[Formula.ABSOLUTE_ERROR].value == ABSOLUTE_LIMIT.value == 0.04  # type: ignore[union-attr]
    assert limits[Formula.CONVERGENCE_ERROR].value == CONVERGENCE_LIMIT.value == 0.05  # type: ignore[union-attr]
    assert limits[Formula.EVALUATION].value == 0.02  # type: ignore[union-attr]
    assert (policy.num_steps, policy.limit_s) == (HORIZON_STEPS.value, HORIZON_S.value)
    assert read_policy("inference").clauses[0].limit.value == 0.01  # type: ignore[union-attr]


@pytest.mark.parametrize("name", POLICIES)
def test_every_built_in_policy_can_be_read_and_carries_its_checksum(name: str) -> None:
    policy = read_policy(name)
    assert policy.sha256 == hashlib.sha256(policy.text.encode()).hexdigest()
    assert set(NEEDS) == set(Formula)


def test_an_offset_fails_its_clean_twin_passes_and_one_on_the_limit_is_undecided() -> None:
    policy = read_policy("reward")
    coverage, *_ = results(policy, noisy(1), noisy(2))
    assert coverage is Outcome.PASS
    assert results(policy, noisy(1), noisy(2)) == [Outcome.PASS] * 3
    assert results(policy, noisy(1), noisy(2, 0.5))[1:] == [Outcome.FAIL, Outcome.FAIL]
    assert results(policy, noisy(1), noisy(2, 0.6 * 0.95))[2] is Outcome.UNDECIDED


def test_fifty_eight_steps_are_no_coverage_of_500() -> None:
    assert results(read_policy("reward"), noisy(1, steps=58), noisy(2, steps=58))[0] is (
        Outcome.UNDECIDED
    )


def test_a_failure_no_larger_than_what_repeats_do_decides_nothing() -> None:
    policy = read_policy("reward")
    worse = noisy(2, 0.5)
    assert results(policy, noisy(1), worse, noisy(3))[1:] == [Outcome.FAIL] * 2
    assert results(policy, noisy(1), worse, noisy(3, 0.45))[1:] == [Outcome.UNDECIDED] * 2


def test_the_seed_band_holds_its_own_seeds_and_not_a_lower_level() -> None:
    # As in field report 38: GPU seeds 0.8042..0.8199, TPU 0.8077.
    policy = read_policy("seed_band")
    seeds = [np.full(100, level) for level in (0.8042, 0.8199, 0.81)]
    flat = np.full(100, 1.0)
    assert results(policy, seeds[0], 0.8077 * flat, *seeds[1:]) == [Outcome.PASS]
    assert results(policy, seeds[0], 0.79 * flat, *seeds[1:]) == [Outcome.FAIL]
    assert results(policy, seeds[0], 0.8077 * flat, seeds[1]) == [Outcome.UNDECIDED]


@pytest.mark.parametrize(("steps", "allowed"), [(50, 1), (100, 1), (250, 2), (9000, 50)])
def test_megatron_allows_a_hundredth_of_the_steps_and_one_at_least(
    steps: int, allowed: int
) -> None:
    assert allowed_failing_steps(steps) == allowed
    reference, candidate = np.ones(steps), np.ones(steps)
    candidate[:allowed] = 1.06  # beyond 5 %
    name = "train/loss"
    assert results(read_policy("megatron"), reference, candidate, name=name) == [Outcome.PASS]
    candidate[: allowed + 1] = 1.06
    assert results(read_policy("megatron"), reference, candidate, name=name) == [Outcome.FAIL]


def test_the_mean_loss_error_is_held_against_the_repeats_alone() -> None:
    policy, name = read_policy("mean_loss"), "train/loss"
    reference = noisy(1, 2.0)
    assert results(policy, reference, noisy(2, 2.0), name=name) == [Outcome.UNDECIDED]
    spread = [noisy(3, 2.0), noisy(4, 2.001)]
    assert results(policy, reference, noisy(5, 2.2), *spread, name=name) == [Outcome.FAIL]
    assert results(policy, reference, reference + 0.001, *spread, name=name) == [Outcome.PASS]


def test_the_detectable_error_is_the_textbook_one_for_independent_steps() -> None:
    difference = np.random.default_rng(1).normal(size=4000)
    difference = (difference - difference.mean()) / difference.std()
    # 2.80 standard errors, each 1 / sqrt(4000), of a scale of 2
    assert detectable_error(difference, 2.0) == pytest.approx(2.80 / math.sqrt(4000) / 2, rel=0.1)


def test_a_task_that_got_worse_fails_though_the_average_passes(tmp_path: Path) -> None:
    up, down = noisy(1, 0.5), noisy(2, 0.5)
    reference = run_of(tmp_path / "ref", noisy(3), math=up, behaviour=down)
    candidate = run_of(tmp_path / "cand", noisy(4), math=noisy(5, 0.7), behaviour=noisy(6, 0.3))
    twin = run_of(tmp_path / "twin", noisy(4), math=noisy(5, 0.5), behaviour=noisy(6, 0.5))
    policy = read_policy("reward")
    failed = judge(reference, candidate, (), policy)
    assert failed.outcome is Outcome.FAIL
    assert {r.task for r in failed.results if r.outcome is Outcome.FAIL} == {"math", "behaviour"}
    assert judge(reference, twin, (), policy).outcome is Outcome.PASS


@pytest.mark.parametrize(("axis", "outcome"), [("step", Outcome.FAIL), ("tokens", Outcome.PASS)])
def test_runs_whose_batches_differ_are_judged_at_equal_tokens_where_the_policy_says(
    tmp_path: Path, axis: str, outcome: Outcome
) -> None:
    policy = policy_file(
        tmp_path,
        f"axis: {axis}\nclauses:\n"
        "  - {formula: absolute_error, metrics: [critic/score/mean], limit: 0.04}",
    )
    rng, sides = np.random.default_rng(3), []
    for name, num, tokens in (("whole", 400, 2e4), ("half", 800, 1e4)):
        steps = np.arange(1, num + 1)
        scores = 0.6 * (1 - np.exp(-tokens * steps / 4e6)) + 0.01 * rng.normal(size=num)
        lines = (
            f"step:{step} - critic/score/mean:{score!r} - perf/total_num_tokens:{tokens}\n"
            for step, score in zip(steps.tolist(), scores.tolist(), strict=True)
        )
        (tmp_path / f"{name}.log").write_text("".join(lines))
        sides.append(load(tmp_path / f"{name}.log"))
    assert judge(sides[0], sides[1], (), policy).outcome is outcome


def test_an_axis_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use step, samples, tokens, hours"):
        policy_file(tmp_path, "axis: days\nclauses: [{formula: coverage}]")


def test_reward_functions_of_mindspeed_rl_are_tasks_too() -> None:
    names = ("grpo/acc_rewards/mean", "grpo/format_rewards/mean")
    from align.acceptance.tasks import task_curves
    from align.curves.pair import pair_logs

    logs = [
        MetricLog("x", "t", None, tuple(log_of(noisy(i), n).series[0] for i, n in enumerate(names)))
        for _ in range(2)
    ]
    empty = RunData(discover([Path(__file__)])).rollouts
    found = task_curves(pair_logs(*logs), (empty, empty), read_policy("reward"))
    assert [curve.task for curve in found] == ["grpo/acc", "grpo/format"]


@pytest.mark.parametrize(
    ("candidate", "outcome"),
    [(0.60, Outcome.PASS), (0.50, Outcome.FAIL), (0.58, Outcome.UNDECIDED)],
)
def test_evaluations_are_judged_with_their_sampling_error(
    tmp_path: Path, candidate: float, outcome: Outcome
) -> None:
    runs = []
    for name, score in (("ref", 0.60), ("cand", candidate)):
        path = tmp_path / f"{name}.csv"
        path.write_text(f"dataset,score,num\nmath,{score},20000\n")
        runs.append(load(path))
    judgement = judge(runs[0], runs[1], (), policy_file(tmp_path, _EVALUATION))
    assert judgement.outcome is outcome


_EVALUATION = "clauses: [{formula: evaluation, limit: 0.02}]\n"


@pytest.mark.parametrize(
    "text",
    [
        "clauses: []",
        "- a list",
        "clauses: [{formula: nonsense}]",
        "clauses: [{formula: absolute_error, metrics: [a]}]",
        "clauses: [{formula: coverage, limits: 3}]",
        "clauses: [{formula: evaluation, limit: -1}]",
        "clauses: [{formula: evaluation, limit: true}]",
        "clauses: [{formula: coverage}]\ntasks: [{formula: seed_band}]",
        "clauses: [{formula: coverage}]\nhorizon: {days: 1}",
        "clauses: [{formula: coverage}",
        "clauses: [{formula: coverage}]\nhorizont: 3",
    ],
)
def test_a_policy_that_cannot_be_judged_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.yaml"):
        policy_file(tmp_path, text)


def test_a_number_that_yaml_takes_for_text_is_a_number(tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "clauses: [{formula: evaluation, limit: 1e-2}]")
    assert policy.clauses[0].limit.value == 0.01  # type: ignore[union-attr]


def test_a_policy_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match="seed_band"):
        read_policy("no_such_policy")


class _Page(HTMLParser):
    """Collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name in ("src", "onload") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_certificate_carries_checksums_formula_window_and_policy(tmp_path: Path) -> None:
    run_of(tmp_path / "ref", noisy(1))
    run_of(tmp_path / "cand", noisy(2))
    out = tmp_path / "out"
    arguments = ["accept", str(tmp_path / "ref"), str(tmp_path / "cand"), "--policy", "reward"]
    result = CliRunner().invoke(cli, [*arguments, "-o", str(out), "--json"])
    assert result.exit_code == 0
    document = json.loads((out / "certificate.json").read_text())
    assert json.loads(result.stdout) == document
    metrics = tmp_path / "cand" / "metrics.jsonl"
    (file,) = document["inputs"][1]["files"]
    assert file == {
        "path": "metrics.jsonl",
        "size_bytes": metrics.stat().st_size,
        "sha256": hashlib.sha256(metrics.read_bytes()).hexdigest(),
    }
    page = _Page()
    page.feed((out / "certificate.html").read_text())
    for needed in (
        file["sha256"],
        "averaged over 21 steps",
        "Signature",
        document["policy"]["sha256"],
    ):
        assert needed in page.text
    assert not page.tags & {"script", "img", "iframe"}


def test_the_certificate_is_escaped_and_speaks_chinese(tmp_path: Path) -> None:
    name = "<script>alert(1)<"
    reference = run_of(tmp_path / name, noisy(1))
    from align.acceptance.certificate import as_document, certify
    from align.acceptance.read_inputs import read_input

    judgement = judge(reference, reference, (), read_policy("reward"))
    inputs = [read_input(role, reference) for role in ("reference", "candidate")]
    page = certificate_page.render(as_document(certify(judgement, inputs)), "zh")
    assert "<script>" not in page
    assert "验收证书" in page and "通过验收" in page


def test_exit_codes_say_pass_fail_and_nothing_to_judge(tmp_path: Path) -> None:
    for name, values in (("ref", noisy(1)), ("good", noisy(2)), ("bad", noisy(3, 0.4))):
        run_of(tmp_path / name, values)
    lone = tmp_path / "lone.csv"
    lone.write_text("dataset,score,num\nmath,0.5,100\n")

    def code(candidate: str, policy: str) -> int:
        arguments = ["accept", str(tmp_path / "ref"), str(tmp_path / candidate)]
        return CliRunner().invoke(cli, [*arguments, "--policy", policy]).exit_code

    assert [code("good", "reward"), code("bad", "reward"), code("good", "field")] == [0, 1, 1]
    assert code("lone.csv", "inference") == 3


def test_real_near_repeats_are_not_refused(corpus: Path) -> None:
    logs = [load(corpus / "verl_logs" / f"grpo_npu_sync_repeat_{side}.txt") for side in "ab"]
    judgement: Judgement = judge(logs[0], logs[1], (), read_policy("reward"))
    assert judgement.outcome is Outcome.UNDECIDED
    assert Outcome.FAIL not in {result.outcome for result in judgement.results}
