"""Rewards: what each rule gives, and that a rule for another task gives nothing, not zero."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

from align.stack.config import load_config
from align.stack.dataset import load_rows
from align.stack.rewards import RewardError, mean_by_rule, rules, score
from align.stack.row import Row


def _row(task: str, truth: str, question: str = "") -> Row:
    return Row(0, "arithmetic", task, ({"role": "user", "content": question},), truth)


ADD = _row("add", "12", "What is 4 + 8?")
COMPARE = _row("compare", "8", "Which is larger: 3 or 8?")


@pytest.mark.parametrize(
    ("row", "text", "want"),
    [
        (ADD, "The answer is 12", 1.0),
        (ADD, "The answer is 1,2.", 1.0),  # a thousands separator, wherever it stands
        (ADD, "4 + 8 = 12", 1.0),
        (ADD, "12 or 13", 0.0),
        (ADD, "The answer is 112", 0.0),
        (ADD, "", 0.0),
        (COMPARE, "8", 1.0),
        (COMPARE, "The answer is 3", 0.2),
        (COMPARE, "5", 0.0),
        (_row("gsm8k", "18"), "so #### 18", 1.0),
        (_row("gsm8k", "1800"), "#### 1,800", 1.0),
        (_row("gsm8k", "18"), "the answer is 18", 0.0),
        (_row("gsm8k", "18"), "#### 18 no, #### 19", 0.0),
    ],
)
def test_a_rule_gives(row: Row, text: str, want: float) -> None:
    scores = score(row, text)
    assert scores.total == want
    assert scores.by_rule[row.task] == want


def test_a_rule_of_another_task_is_none_and_stays_out_of_the_mean() -> None:
    scores = [score(ADD, "12"), score(ADD, "11"), score(COMPARE, "8")]
    assert [each.by_rule["compare"] for each in scores] == [None, None, 1.0]
    assert mean_by_rule(scores) == {"add": 0.5, "compare": 1.0}  # zeros in it: 0.33 and 0.33


def test_a_rule_that_applies_to_no_row_of_a_batch_has_no_mean() -> None:
    assert mean_by_rule([score(ADD, "12")]) == {"add": 1.0}


def test_every_rule_is_found_by_its_file() -> None:
    assert {"add", "compare", "gsm8k"} <= set(rules())
    assert all(name == rule.name for name, rule in rules().items())


def test_a_row_that_no_rule_can_judge_is_refused_with_its_task() -> None:
    with pytest.raises(RewardError, match=r"task 'poetry'.*no rule applies"):
        score(_row("poetry", "x"), "x")
    with pytest.raises(RewardError, match="add"):
        score(COMPARE, "8", names=["add"])


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(RewardError, match="acc"):
        score(ADD, "12", names=["acc"])


def test_every_solution_of_the_built_in_set_scores_full() -> None:
    for row in load_rows(load_config()):
        assert row.solution is not None
        assert score(row, row.solution).total == 1.0
