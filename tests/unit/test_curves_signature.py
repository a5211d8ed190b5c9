"""Entropy, response length and reward that break down together are one finding, in order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import align
from align.cli.main import cli
from align.core.finding import Finding, Severity
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import RungResult
from align.curves.rung import compare_logs
from align.ladder import earliest_symptom

REWARD, LENGTH, ENTROPY, NORM = (
    "critic/score/mean",
    "response_length/mean",
    "actor/entropy",
    "actor/grad_norm",
)
ID = "curves.collapse_signature"
STEPS = 500
TIME = np.arange(1, STEPS + 1)
Run = dict[str, np.ndarray]
Edit = Callable[[np.ndarray], np.ndarray]


def run(seed: int, **edits: Edit) -> Run:
    """Draw a run of a settled reward; edits are made to reward, length or entropy."""
    rng = np.random.default_rng(seed)

    def noise() -> np.ndarray:
        values = rng.normal(size=STEPS)
        for i in range(1, STEPS):
            values[i] = 0.4 * values[i - 1] + np.sqrt(1 - 0.4**2) * values[i]
        return values

    curves = {
        REWARD: 0.1 + 0.6 * (1 - np.exp(-TIME / 60)) + 0.02 * noise(),
        LENGTH: 400 * np.exp(0.03 * noise()),
        ENTROPY: (0.2 + 0.3 * np.exp(-TIME / 100)) * np.exp(0.04 * noise()),
        NORM: 0.3 * np.exp(0.1 * noise()),
    }
    names = {"reward": REWARD, "length": LENGTH, "entropy": ENTROPY, "norm": NORM}
    return {**curves, **{names[key]: edit(curves[names[key]]) for key, edit in edits.items()}}


def to(share: float, begin: int, within: int = 20) -> Edit:
    """Move a metric to a share of itself from a step on."""
    done = np.clip((TIME - begin) / within, 0, 1)
    return lambda values: values * (1 + (share - 1) * done)


def compare(reference: Run, candidate: Run) -> RungResult:
    def log(curves: Run) -> MetricLog:
        zeros = np.zeros(STEPS)
        series = (MetricSeries(n, n, "run.log", TIME, v, zeros, TIME) for n, v in curves.items())
        return MetricLog("run.log", "test", None, tuple(series))

    return compare_logs(log(reference), log(candidate))


def signature(result: RungResult) -> Finding | None:
    return next((f for f in result.findings if f.id == ID), None)


def order(result: RungResult) -> list[str]:
    table = next(t for t in result.tables if t.id == ID)
    return [str(row[0]) for row in table.rows]


def test_entropy_then_length_then_reward_is_a_policy_that_repeats_itself() -> None:
    fallen = {"entropy": to(0.1, 250), "length": to(0.2, 300), "reward": to(0.1, 340)}
    result = compare(run(1), run(2, **fallen))
    found = signature(result)
    assert found is not None and found.severity is Severity.ERROR
    assert order(result) == [ENTROPY, LENGTH, REWARD]
    assert "repeats few answers" in found.title.en
    assert found.symptom is not None and found.symptom.metric == ENTROPY
    assert abs(found.symptom.step - 250) <= 10
    assert "entropy coefficients" in found.fix.en
    # It began before each of the collapses, so the verdict is about it.
    assert earliest_symptom(result.findings) is found


def test_rising_entropy_is_a_policy_that_falls_apart() -> None:
    fallen = {"entropy": to(6.0, 250), "length": to(2.5, 290), "reward": to(0.05, 300)}
    found = signature(compare(run(3), run(4, **fallen)))
    assert found is not None and "fall apart" in found.title.en
    assert "sign of the loss" in found.fix.en


def test_length_and_reward_without_entropy_point_at_the_responses() -> None:
    result = compare(run(5), run(6, length=to(0.1, 300, 1), reward=to(0.1, 320, 1)))
    found = signature(result)
    assert found is not None and order(result) == [LENGTH, REWARD]
    assert "Read the responses" in found.fix.en


def test_metrics_that_leave_at_one_step_are_not_put_in_order() -> None:
    fallen = {"entropy": to(0.2, 300), "reward": to(0.1, 300)}
    found = signature(compare(run(7), run(8, **fallen)))
    assert found is not None and "which of them was first is not known" in found.title.en


def test_a_collapse_of_the_reference_is_said_of_the_reference() -> None:
    fallen = {"entropy": to(0.1, 250), "reward": to(0.1, 340)}
    found = signature(compare(run(9, **fallen), run(10)))
    assert found is not None and "policy of the reference" in found.title.en


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({}, {"reward": to(0.1, 300)}),  # a collapse of one metric alone
        ({}, {"entropy": to(0.2, 300)}),  # entropy alone
        ({}, {"norm": to(5.0, 300), "reward": to(0.1, 300)}),  # another metric moves with it
        ({}, {"entropy": lambda v: 0.4 * v, "reward": to(0.1, 300)}),  # apart from the beginning
        (  # both runs of the recipe break down
            {"entropy": to(0.1, 250), "length": to(0.2, 300), "reward": to(0.1, 340)},
            {"entropy": to(0.1, 250), "length": to(0.2, 300), "reward": to(0.1, 340)},
        ),
    ],
)
def test_its_twins_have_no_signature(ours: dict[str, Edit], theirs: dict[str, Edit]) -> None:
    for seed in range(3):
        assert signature(compare(run(20 + seed, **ours), run(40 + seed, **theirs))) is None


def test_a_real_run_that_breaks_down_shows_it_in_the_report_and_its_twin_does_not(
    tmp_path: Path,
) -> None:
    examples = Path(align.__file__).parent / "examples"
    broken = tmp_path / "broken"
    shutil.copytree(examples / "repeat", broken, ignore=shutil.ignore_patterns("console*", "tb*"))
    break_down(broken / "metrics.jsonl")
    for candidate, found in ((broken, True), (examples / "repeat", False)):
        command = ["curves", "diff", str(examples / "reference"), str(candidate), "--json"]
        document = json.loads(CliRunner().invoke(cli, command).stdout)
        assert (ID in json.dumps(document)) is found


def break_down(path: Path) -> None:
    """Let entropy, length and reward of a recorded run fall, in this order."""
    begins = {"actor/entropy": 20, "response_length/mean": 24, "critic/score/mean": 26}
    lines = []
    for text in path.read_text("utf-8").splitlines():
        row = json.loads(text)
        data = row.get("data", row)
        for name, begin in begins.items():
            if name in data and int(row.get("step", 0)) >= begin:
                data[name] *= 0.05
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n", "utf-8")
