"""Rollout and reward rungs: what they must name, and where they must stay silent."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from align.core.finding import Severity
from align.core.rung import Rung, RungResult, RungStatus
from align.rollout import reward_rung, rung
from align.rollout.permutation import Shift, Units, permutation_p, shifts
from dumps.store.discover import discover
from dumps.store.run_data import RunData

Row = dict[str, Any]


def data_of(folder: Path, rows: list[Row]) -> RunData:
    folder.mkdir(parents=True, exist_ok=True)
    for step in {row["step"] for row in rows}:
        lines = (json.dumps(row) + "\n" for row in rows if row["step"] == step)
        (folder / f"{step}.jsonl").write_text("".join(lines), "utf-8")
    return RunData(discover([folder]))


def recipe(seed: int, *, steps: int = 3, prompts: int = 16, n: int = 4) -> list[Row]:
    """Sample one recipe: same prompts for every seed, log-normal lengths, one in three right."""
    rng = random.Random(seed)
    rows = []
    for step, prompt, _ in itertools.product(range(1, steps + 1), range(prompts), range(n)):
        words = int(rng.lognormvariate(3.5 + prompt / 20, 0.6))
        answer = " ".join(rng.choices(["so", "we", "add", "7", "and", "8"], k=words))
        rows.append(
            {
                "input": f"user\nquestion {step}.{prompt}\nassistant\n",
                "output": f"{answer} #{rng.randrange(10**9)}",
                "gts": str(prompt),
                "score": float(rng.random() < 1 / 3),
                "step": step,
            }
        )
    return rows


def changed(rows: list[Row], change: Callable[[Row], Row], *, first: int = 1) -> list[Row]:
    return [{**row, **change(row)} if row["step"] >= first else row for row in rows]


@pytest.fixture
def compare(tmp_path: Path) -> Callable[[list[Row], list[Row]], RungResult]:
    def compare_rows(reference: list[Row], candidate: list[Row]) -> RungResult:
        return rung.compare(
            data_of(tmp_path / "a" / "rollout", reference),
            data_of(tmp_path / "b" / "rollout", candidate),
        )

    return compare_rows


def ids(result: RungResult) -> list[str]:
    return [finding.id for finding in result.findings]


def with_ids(rows: list[Row], cut: Callable[[list[int]], list[int]] = list) -> list[Row]:
    """Give every row ids and the text that they spell."""
    made = []
    for row in rows:
        own = cut([hash_of(word) for word in row["output"].split()])
        made.append({**row, "response_ids": own, "output": " ".join(map(str, own))})
    return made


def hash_of(word: str) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(word)) % 50_000


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (lambda own: own[:-1], "without their last tokens: 1 token each"),
        (lambda own: own[: len(own) // 2], "without their last tokens: about"),
    ],
)
def test_responses_that_lost_their_ends_are_named_by_what_they_lost(
    compare: Callable[[list[Row], list[Row]], RungResult], cut: Any, said: str
) -> None:
    rows = recipe(3)
    result = compare(with_ids(rows), with_ids(rows, cut))
    assert result.status is RungStatus.DIVERGED
    assert "rollout.responses_cut" in ids(result)
    assert said in result.findings[ids(result).index("rollout.responses_cut")].title.en
    assert ids(compare(with_ids(rows), with_ids(recipe(4)))) == []


def test_two_seeds_of_one_recipe_are_never_called_different(tmp_path: Path) -> None:
    runs = [data_of(tmp_path / str(seed) / "rollout", recipe(seed)) for seed in range(12)]
    for reference, candidate in itertools.combinations(runs, 2):
        result = rung.compare(reference, candidate)
        assert result.status is RungStatus.ALIGNED
        assert result.findings == ()


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ("v091_v0_fsdp2", "v091_v1_fsdp2"),
        ("v091_v1_vllmcpu", "v091_v1_vllmcpu_bf16rollout"),
        ("v091_v1_fsdp2", "v091_v1_vllmcpu"),
    ],
)
def test_real_clean_pairs_are_silent(reference_runs: Path, reference: str, candidate: str) -> None:
    ours, theirs = (
        RunData(discover([reference_runs / r / "rollout"])) for r in (reference, candidate)
    )
    result = rung.compare(ours, theirs)
    assert result.name is Rung.ROLLOUT and result.status is RungStatus.ALIGNED
    assert result.findings == ()
    (table,) = result.tables
    assert [row[0] for row in table.rows] == list(range(1, len(table.rows) + 1))
    assert "characters" in table.title.en


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        (lambda row: {"output": row["output"][: len(row["output"]) // 4]}, "response_length"),
        (lambda row: {"score": row["score"] - 0.9}, "scores"),
        (lambda row: {"output": ""}, "empty"),
        (lambda row: {"output": "!" * 100}, "token0"),
        (lambda row: {"output": row["output"] + "\nuser\nAnd 5?"}, "next_turn"),
        (lambda row: {"output": row["output"] + " again" * 60}, "loops"),
        (lambda row: {"output": row["output"] + "\ufffd"}, "broken_text"),
        (lambda row: {"output": f"greedy {row['input']}"}, "repeats"),
    ],
)
def test_a_fault_at_the_first_step_is_named_as_a_symptom(
    compare: Callable[[list[Row], list[Row]], RungResult],
    fault: Callable[[Row], Row],
    finding: str,
) -> None:
    result = compare(recipe(1), changed(recipe(2), fault))
    assert result.status is RungStatus.DIVERGED
    named = next(f for f in result.findings if f.id == f"rollout.{finding}")
    assert named.severity is Severity.ERROR
    assert named.symptom is not None and named.mechanism is None
    assert (named.symptom.step, named.symptom.first_recorded_step) == (1, 1)
    assert not named.symptom.noise_sized


@pytest.mark.parametrize(
    ("fault", "quote"),
    [("!" * 100, "!" * 100), ("so " * 900, None), ("x\nuser\ny", "x\\nuser\\ny")],
)
def test_evidence_points_at_a_row_of_the_step_that_is_named(
    tmp_path: Path, fault: str, quote: str | None
) -> None:
    rows = changed(recipe(2), lambda row: {"output": fault}, first=3)
    candidate = data_of(tmp_path / "b" / "rollout", rows)
    result = rung.compare(data_of(tmp_path / "a" / "rollout", recipe(1)), candidate)
    for finding in result.findings:
        assert finding.symptom is not None and finding.symptom.step == 3
        for evidence, side in zip(finding.evidence, "ab", strict=True):
            assert evidence.source == str(tmp_path / side / "rollout" / "3.jsonl")
            row = json.loads(
                Path(evidence.source).read_text().splitlines()[(evidence.line or 0) - 1]
            )
            assert row["step"] == 3
    quotes = {finding.evidence[1].text for finding in result.findings}
    assert quote is None or quote in quotes


def test_policies_that_drift_apart_later_are_dated_not_blamed(
    compare: Callable[[list[Row], list[Row]], RungResult],
) -> None:
    longer = changed(recipe(2), lambda row: {"output": row["output"] * 3}, first=3)
    result = compare(recipe(1), longer)
    assert result.status is RungStatus.ALIGNED
    (finding,) = [f for f in result.findings if f.id == "rollout.response_length"]
    assert finding.severity is Severity.INFO
    assert finding.symptom is not None and finding.symptom.step == 3


def test_responses_that_break_down_later_are_an_error(
    compare: Callable[[list[Row], list[Row]], RungResult],
) -> None:
    broken = changed(recipe(2), lambda row: {"output": "!" * 80}, first=2)
    result = compare(recipe(1), broken)
    assert result.status is RungStatus.DIVERGED
    (finding,) = [f for f in result.findings if f.id == "rollout.token0"]
    assert finding.severity is Severity.ERROR
    assert finding.symptom is not None and finding.symptom.step == 2


def test_a_resumed_run_is_not_tested_as_an_initial_model(
    compare: Callable[[list[Row], list[Row]], RungResult],
) -> None:
    moved = [[{**row, "step": row["step"] + 100} for row in recipe(seed)] for seed in (1, 2)]
    shorter = changed(moved[1], lambda row: {"output": row["output"][:8]})
    result = compare(moved[0], shorter)
    assert result.status is RungStatus.ALIGNED
    assert all(finding.severity is Severity.INFO for finding in result.findings)
    assert "not tested" in result.summary.en


def test_another_group_size_and_another_batch_are_told_apart(
    compare: Callable[[list[Row], list[Row]], RungResult],
) -> None:
    groups = compare(recipe(1, n=4), recipe(2, n=8))
    assert ids(groups)[0] == "rollout.group_size"
    assert (groups.findings[0].reference, groups.findings[0].candidate) == (4, 8)
    batch = compare(recipe(1, prompts=16), recipe(2, prompts=8))
    assert ids(batch)[0] == "rollout.count"
    assert (batch.findings[0].reference, batch.findings[0].candidate) == (64, 32)


def test_a_dump_that_breaks_off_is_not_another_batch_size(
    compare: Callable[[list[Row], list[Row]], RungResult],
) -> None:
    assert compare(recipe(1), recipe(2)[:-20]).status is RungStatus.ALIGNED


def test_missing_dumps_say_which_side_and_how_to_record(tmp_path: Path) -> None:
    rows, nothing = data_of(tmp_path / "a" / "r", recipe(1)), data_of(tmp_path / "b", [])
    for compare in (rung.compare, reward_rung.compare):
        result = compare(rows, nothing)
        assert result.status is RungStatus.MISSING
        assert result.missing[0].side == "candidate"
        assert "rollout_data_dir" in result.missing[0].how_to_record.en
    assert rung.compare(nothing, nothing).missing[0].side == "both"


def test_dumps_of_other_steps_are_undecided(
    compare: Callable[[list[Row], list[Row]], RungResult],
) -> None:
    later = [{**row, "step": row["step"] + 50} for row in recipe(1)]
    assert compare(recipe(1), later).status is RungStatus.UNDECIDED


def reward(tmp_path: Path, reference: list[Row], candidate: list[Row]) -> RungResult:
    return reward_rung.compare(
        data_of(tmp_path / "a" / "rollout", reference),
        data_of(tmp_path / "b" / "rollout", candidate),
    )


def test_equal_responses_with_other_scores_are_named(tmp_path: Path) -> None:
    rows = recipe(1)
    strict = changed(rows, lambda row: {"score": 0.0 if row["gts"] == "3" else row["score"]})
    result = reward(tmp_path, rows, strict)
    expected = sum(row["gts"] == "3" and row["score"] > 0 for row in rows)
    assert expected > 0
    assert result.name is Rung.REWARD and result.status is RungStatus.DIVERGED
    (finding,) = result.findings
    assert finding.id == "reward.same_response_other_score"
    assert (finding.reference, finding.candidate) == (1.0, 0.0)
    assert f"{expected} of {len(rows)}" in finding.title.en
    assert finding.mechanism is not None and finding.mechanism.acts_on is Rung.REWARD


def test_the_same_scores_on_other_responses_are_called_permuted(tmp_path: Path) -> None:
    rows = [{**row, "score": len(row["output"]) / 100} for row in recipe(1)]
    at = {step: [row for row in rows if row["step"] == step] for step in (1, 2, 3)}
    moved = [
        {**row, "score": own[i - 1]["score"]} for own in at.values() for i, row in enumerate(own)
    ]
    (finding,) = reward(tmp_path, rows, moved).findings
    assert finding.id == "reward.permuted"
    assert "the same scores stand on other responses" in finding.title.en


def test_float32_scores_equal_float64_scores(tmp_path: Path) -> None:
    rows = changed(recipe(1), lambda row: {"score": (row["score"] + 1) / 7})
    single = changed(rows, lambda row: {"score": float(np.float32(row["score"]))})
    result = reward(tmp_path, rows, single)
    assert result.status is RungStatus.ALIGNED
    assert f"All {len(rows)} responses" in result.summary.en


def test_real_runs_score_their_common_responses_alike(reference_runs: Path) -> None:
    for a, b, expected in [
        ("v091_v0_fsdp2", "v091_v1_fsdp2", RungStatus.ALIGNED),
        ("v091_v1_vllmcpu", "v091_v1_vllmcpu_bf16rollout", RungStatus.ALIGNED),
        ("v091_v0_fsdp2", "v091_v1_vllmcpu", RungStatus.MISSING),
    ]:
        runs = [RunData(discover([reference_runs / run / "rollout"])) for run in (a, b)]
        assert reward_rung.compare(*runs).status is expected


def test_a_score_that_is_no_rule_is_not_judged(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [row for row in recipe(1) for _ in range(2)]
    noisy = [[{**row, "score": rng.random()} for row in rows] for _ in range(2)]
    result = reward(tmp_path, *noisy)
    assert result.status is RungStatus.UNDECIDED and result.findings == ()


def test_another_ground_truth_is_no_contradiction(tmp_path: Path) -> None:
    rows = recipe(1)
    relabelled = changed(rows, lambda row: {"gts": "other", "score": 1 - row["score"]})
    assert reward(tmp_path, rows, relabelled).status is RungStatus.MISSING


def test_runs_without_equal_responses_name_the_experiment(tmp_path: Path) -> None:
    result = reward(tmp_path, recipe(1), recipe(2))
    assert result.status is RungStatus.MISSING
    assert "Score the reference's" in result.missing[0].how_to_record.en


def units(*strata: tuple[list[float], list[float]]) -> Units:
    value = [v for a, b in strata for v in (*a, *b)]
    stratum = [i for i, (a, b) in enumerate(strata) for _ in (*a, *b)]
    side = [s for a, b in strata for s in (*[False] * len(a), *[True] * len(b))]
    return Units(np.array(value), np.array(stratum), np.array(side))


def test_drawn_p_values_agree_with_full_enumeration() -> None:
    data = units(([1.0, 2.0, 2.5], [3.0, 4.0]), ([0.0, 1.0], [0.5, 5.0, 6.0]))
    (a1, b1), (a2, b2) = ([1.0, 2.0, 2.5], [3.0, 4.0]), ([0.0, 1.0], [0.5, 5.0, 6.0])
    observed = (np.mean(b1) - np.mean(a1) + np.mean(b2) - np.mean(a2)) / 2
    hits = total = 0
    for first in itertools.combinations(range(5), 2):
        for second in itertools.combinations(range(5), 3):
            difference = 0.0
            for pool, chosen in ((a1 + b1, first), (a2 + b2, second)):
                rest = [pool[i] for i in range(5) if i not in chosen]
                difference += float(np.mean([pool[i] for i in chosen]) - np.mean(rest)) / 2
            hits += int(abs(difference) >= abs(observed) - 1e-12)
            total += 1
    assert permutation_p(data) == pytest.approx(hits / total, abs=0.015)


def test_the_standard_error_is_that_of_all_relabellings() -> None:
    pool = [1.0, 2.0, 4.0, 8.0, 16.0]
    (shift,) = shifts(units((pool[:2], pool[2:])), np.array([0]))
    assert isinstance(shift, Shift)
    everything = [
        np.mean([pool[i] for i in range(5) if i not in chosen]) - np.mean([pool[i] for i in chosen])
        for chosen in itertools.combinations(range(5), 2)
    ]
    assert shift.difference == pytest.approx(np.mean(pool[2:]) - np.mean(pool[:2]))
    assert shift.standard_error == pytest.approx(np.std(everything))
    assert shift.p_normal == pytest.approx(math.erfc(abs(shift.z) / math.sqrt(2)))
