"""`align bisect drift` names the smallest place that two records show, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from align.bisect.drift_rows import first_rows
from align.bisect.drift_tasks import task_shifts
from align.bisect.level import LevelStatus
from align.bisect.level_texts import layer_level, token_level
from align.cli.main import cli
from align.core.finding import Finding, Severity
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from dumps.store.discover import discover
from dumps.store.rollout_pair import RolloutPair, pair_rollouts
from dumps.store.run_data import RunData

Row = dict[str, Any]
Edit = Callable[[int, int, Row], None]
STEPS, ROWS = 60, 16


def test_the_step_metric_task_row_and_token_of_a_planted_drift_are_named(tmp_path: Path) -> None:
    def worse(step: int, number: int, row: Row) -> None:
        if step >= 20 and row["task"] == "gsm8k":
            row.update(response_ids=[5, 9, 7], output=f"x {step} wrong", score=0.0)

    result, found = drift(tmp_path, worse)
    levels = {level["level"]: level for level in found["levels"]}
    assert result.exit_code == 1
    assert "rows differ from step 20 on" in levels["step"]["place"]
    assert levels["metric"]["place"].startswith("critic/score/mean")
    assert levels["task"]["place"].startswith("1 of 2 tasks")
    assert "gsm8k" in levels["task"]["place"]
    assert "math" not in levels["task"]["place"]
    assert levels["row"]["place"] == "step 20: 8 of 16 responses differ, all before are the same"
    assert levels["row"]["evidence"][0]["source"].endswith("ref/rollout/20.jsonl")
    assert levels["row"]["evidence"][0]["line"] == 1
    assert levels["token"]["place"].startswith("token 1 (0-based)")
    assert "'6' in the reference, '9' in the candidate" in levels["token"]["place"]
    assert levels["layer"]["status"] == "missing"
    assert "align train" in found["next_step"]
    assert found["smallest"] == "token"


def test_an_equal_response_of_another_score_is_the_row_and_no_token(tmp_path: Path) -> None:
    def other_rule(step: int, number: int, row: Row) -> None:
        row["score"] = 0.0 if row["task"] == "math" else row["score"]

    _, found = drift(tmp_path, other_rule)
    levels = {level["level"]: level for level in found["levels"]}
    assert "have the same response and another score" in levels["row"]["place"]
    assert "reward.same_response_other_score" in levels["row"]["findings"]
    assert (levels["token"]["status"], found["smallest"]) == ("open", "row")


def test_a_clean_twin_is_silent(tmp_path: Path) -> None:
    result, found = drift(tmp_path, lambda step, number, row: None)
    assert (result.exit_code, found["levels"], found["smallest"]) == (0, [], None)


def test_runs_that_sample_apart_name_no_row_and_how_to_replay(tmp_path: Path) -> None:
    def sampled(step: int, number: int, row: Row) -> None:
        row.update(output=f"{row['output']} again", response_ids=[number, 8])
        row["score"] = 0.0 if step >= 20 else row["score"]

    _, found = drift(tmp_path, sampled)
    levels = {level["level"]: level for level in found["levels"]}
    assert levels["row"]["status"] == levels["token"]["status"] == "missing"
    assert "align replay" in levels["row"]["missing"]
    assert "rows differ" not in levels["step"]["place"]


def test_the_first_layer_and_the_first_defect_of_the_tokens_are_the_ladders() -> None:
    rungs = {
        Rung.TOKENS: of_rung(Rung.TOKENS, finding(Rung.TOKENS, "tokens.mask_shifted")),
        Rung.FORWARD: aligned(Rung.FORWARD),
        Rung.BACKWARD: of_rung(Rung.BACKWARD, finding(Rung.BACKWARD, "backward.scale")),
    }
    assert layer_level(rungs).findings == ("backward.scale",)
    assert token_level(None, rungs).findings == ("tokens.mask_shifted",)
    rungs[Rung.FORWARD] = of_rung(Rung.FORWARD, finding(Rung.FORWARD, "forward.first_divergence"))
    assert layer_level(rungs).findings == ("forward.first_divergence",)


def test_layers_that_agree_are_said_to_and_absent_ones_say_how_to_record() -> None:
    agreed = layer_level({Rung.FORWARD: aligned(Rung.FORWARD)})
    assert (agreed.status, agreed.place.en) == (LevelStatus.OPEN, "all agree")
    absent = layer_level({})
    assert absent.status is LevelStatus.MISSING
    assert absent.missing is not None


def finding(rung: Rung, name: str) -> Finding:
    text = Text(name, name)
    return Finding(name, rung, Severity.ERROR, text, None, None, (), text, text)


def of_rung(rung: Rung, found: Finding) -> RungResult:
    return RungResult(rung, RungStatus.DIVERGED, Text("", ""), (found,))


def aligned(rung: Rung) -> RungResult:
    return RungResult(rung, RungStatus.ALIGNED, Text("all agree", "一致"))


def test_it_reads_in_chinese(tmp_path: Path) -> None:
    pair_of(tmp_path, lambda step, number, row: row.update(score=0.0))
    result = called(tmp_path, "--lang", "zh")
    assert "目前已知的最小位置: 行" in result.stdout


def test_the_share_of_a_task_is_its_part_of_the_difference_of_the_mean(tmp_path: Path) -> None:
    def shift(step: int, number: int, row: Row) -> None:
        row["score"] -= 0.3 if row["task"] == "math" else 0.1

    gsm, math = sorted(task_shifts(pair_of(tmp_path, shift), None) or (), key=lambda s: s.task)
    assert [gsm.difference, math.difference] == pytest.approx([-0.1, -0.3])
    assert [gsm.share, math.share] == pytest.approx([0.25, 0.75])  # as many rows
    assert math.beyond_noise


def test_no_task_is_named_by_chance(tmp_path: Path) -> None:
    """100 pairs of other draws of the same scores, judged at a level of 1 %."""
    draws = np.random.default_rng(3)
    named = 0
    for number in range(100):
        folder = tmp_path / str(number)
        pair = pair_of(
            folder, lambda step, n, row: row.update(score=float(draws.normal())), steps=6, both=True
        )
        named += any(shift.beyond_noise for shift in task_shifts(pair, None) or ())
    assert named <= 5  # P(more | 1 %) < 0.001


def test_the_first_row_is_found_whatever_the_order_of_the_dump(tmp_path: Path) -> None:
    def late(step: int, number: int, row: Row) -> None:
        if (step, number) == (3, 5):
            row.update(output="other", response_ids=[1, 2])

    rows = first_rows(pair_of(tmp_path, late, steps=5, turned=True))
    assert (rows.step, rows.num_responses, rows.num_scores) == (3, 1, 0)
    assert not rows.sampled_apart
    assert [text.response for text in rows.quoted[0]] == ["right 3 5", "other"]


def drift(folder: Path, edit: Edit) -> tuple[Any, dict[str, Any]]:
    pair_of(folder, edit)
    result = called(folder, "--json")
    return result, json.loads(result.stdout)


def called(folder: Path, *options: str) -> Any:
    words = ["bisect", "drift", str(folder / "ref"), str(folder / "cand"), *options]
    return CliRunner().invoke(cli, words)


def pair_of(
    folder: Path, edit: Edit, *, steps: int = STEPS, turned: bool = False, both: bool = False
) -> RolloutPair:
    """Write two runs of the same rows, the candidate's edited, and pair them."""
    sides = []
    for name in ("ref", "cand"):
        run = folder / name
        (run / "rollout").mkdir(parents=True)
        draws = np.random.default_rng(11)
        lines = []
        for step in range(1, steps + 1):
            rows = [new_row(step, n, draws) for n in range(ROWS)]
            for number, row in enumerate(rows):
                if name == "cand" or both:
                    edit(step, number, row)
            score = float(np.mean([row["score"] for row in rows]))
            lines.append(json.dumps({"step": step, "data": {"critic/score/mean": score}}))
            shown = rows[::-1] if turned and name == "cand" else rows
            text = "".join(json.dumps(row) + "\n" for row in shown)
            (run / "rollout" / f"{step}.jsonl").write_text(text)
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        sides.append(RunData(discover([run])).rollouts)
    return pair_rollouts(*sides)


def new_row(step: int, number: int, draws: np.random.Generator) -> Row:
    return {
        "input": f"question {number} of step {step}?",
        "output": f"right {step} {number}",
        "score": float(draws.normal(0.6, 0.1)),
        "step": step,
        "task": "gsm8k" if number % 2 == 0 else "math",
        "response_ids": [5, 6, 7],
    }
