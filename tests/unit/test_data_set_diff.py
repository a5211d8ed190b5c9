"""Differences between data sets, and what configurations say where runs show no prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from align.core.data_set import DataSet
from align.core.finding import Severity
from align.core.rung import RungResult, RungStatus
from align.data.data_set_diff import compare_data_sets
from align.ladder import compare_data
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.order_runs import QUESTIONS, steps_of, verl_run

Rows = list[str]


def data_set(prompts: Rows, labels: list[str | None] | None = None) -> DataSet:
    labels = [str(i) for i in range(len(prompts))] if labels is None else labels
    return DataSet("rows", "raw_data", len(prompts), prompts=prompts, labels=labels)


def compare(tmp_path: Path, candidate: Rows, **settings: int) -> RungResult:
    """Compare two runs that hold their data sets and nothing of their prompts."""
    runs = []
    for name, questions in (("reference", QUESTIONS), ("candidate", candidate)):
        folder = tmp_path / name
        own = settings if name == "candidate" else {}
        verl_run(folder, [], questions=questions, counted=None, **own)  # type: ignore[arg-type]
        runs.append(RunData(discover([folder])))
    return compare_data(*runs)


def test_equal_data_sets_are_silent_and_the_same_order_is_predicted(tmp_path: Path) -> None:
    result = compare(tmp_path, QUESTIONS)
    assert result.findings == () and result.status is RungStatus.UNDECIDED
    assert "the same rows at each of the first 16 steps" in result.summary.en


@pytest.mark.parametrize(
    ("change", "finding", "words"),
    [
        (lambda q: q[:-3], "data.rows", "3 only in the reference, 0 only in the candidate"),
        (lambda q: [*q, "new"], "data.rows", "0 only in the reference, 1 only in the candidate"),
        (lambda q: [*q, q[5]], "data.rows", "1 repeated otherwise"),
        (lambda q: [*q[::-1]], "data.rows_moved", "64 of 64 stand at another place"),
        (lambda q: [*q[1:], q[0]], "data.rows_moved", "64 of 64 stand at another place"),
        (lambda q: [q[0], q[2], q[1], *q[3:]], "data.rows_moved", "2 of 64 stand at another"),
        (
            lambda q: [f"{text} Think step by step." for text in q],
            "data.rows_altered",
            "64 questions are altered in the candidate's data set, alike: '' became",
        ),
        (lambda q: [*q[:7], q[7] + "!", *q[8:]], "data.rows_altered", "1 questions are altered"),
    ],
)
def test_each_planted_difference_is_named_first(
    tmp_path: Path, change: Callable[[Rows], Rows], finding: str, words: str
) -> None:
    result = compare(tmp_path, change(QUESTIONS))
    assert result.status is RungStatus.DIVERGED
    assert result.findings[0].id == finding and words in result.findings[0].title.en
    assert result.findings[0].severity is Severity.ERROR


def test_labels_lost_or_altered_are_counted() -> None:
    lost: list[str | None] = [None if i in (3, 9) else str(i) for i in range(64)]
    other = [str(i + (i == 5)) for i in range(64)]
    diff = compare_data_sets(data_set(QUESTIONS), data_set(QUESTIONS, lost))
    assert diff is not None and diff.lost_labels[:, 0].tolist() == [3, 9]
    assert not len(diff.other_labels) and diff.same_rows
    diff = compare_data_sets(data_set(QUESTIONS), data_set(QUESTIONS, [*other]))
    assert diff is not None and diff.other_labels.tolist() == [[5, 5]]


def test_unseen_rows_are_a_warning_where_every_step_has_the_same_prompts(tmp_path: Path) -> None:
    a = verl_run(tmp_path / "a", steps_of(42))
    more = [*QUESTIONS, "never drawn"]
    b = verl_run(tmp_path / "b", steps_of(42), questions=more, counted=65)
    result = compare_data(a, b)
    assert [f.id for f in result.findings] == ["data.rows"]
    assert result.findings[0].severity is Severity.WARNING


def test_token_ids_are_compared_by_content_and_never_with_text() -> None:
    ids = [np.array([i, i + 1], np.int32) for i in range(9)]
    ours = DataSet("a", "mindspeed_rl_indexed", 9, token_ids=ids)
    theirs = DataSet("b", "mindspeed_rl_indexed", 8, token_ids=ids[:8])
    diff = compare_data_sets(ours, theirs)
    assert diff is not None and diff.lost.tolist() == [8] and not len(diff.added)
    assert compare_data_sets(ours, data_set(QUESTIONS)) is None


def test_another_seed_is_predicted_where_no_prompts_were_recorded(tmp_path: Path) -> None:
    result = compare(tmp_path, QUESTIONS, seed=1)
    (finding,) = result.findings
    assert finding.id == "data.order.predicted_divergent_step"
    assert "from step 1 on" in finding.title.en
    assert "seed 42 in the reference, 1 in the candidate" in finding.title.en


def test_workers_of_one_kind_are_predicted_to_change_nothing(tmp_path: Path) -> None:
    assert compare(tmp_path, QUESTIONS, workers=0).findings == ()
    (finding,) = compare(tmp_path / "again", QUESTIONS, workers=4).findings
    assert "loader processes 0 in the reference, 4 in the candidate" in finding.title.en


def test_labels_that_two_files_write_otherwise_are_not_other_labels() -> None:
    written = [f"#### {i}" for i in range(64)]
    diff = compare_data_sets(data_set(QUESTIONS), data_set(QUESTIONS, [*written]))
    assert diff is not None and not len(diff.other_labels)


def test_data_sets_with_nothing_in_common_are_not_compared(tmp_path: Path) -> None:
    others = [f"Prove lemma {i * i} by induction on its {i}th term" for i in range(64)]
    assert not any(f.id.startswith("data.rows") for f in compare(tmp_path, others).findings)


def test_raw_data_against_a_parquet_with_an_instruction_is_a_warning(tmp_path: Path) -> None:
    verl_run(tmp_path / "a", [], questions=[f"{q} Think step by step." for q in QUESTIONS])
    verl_run(tmp_path / "b", [], data=False)
    lines = [json.dumps({"question": q, "answer": str(i)}) for i, q in enumerate(QUESTIONS)]
    (tmp_path / "b" / "train.jsonl").write_text("\n".join(lines), "utf-8")
    runs = [RunData(discover([tmp_path / name])) for name in "ab"]
    (finding,) = compare_data(*runs).findings
    assert finding.id == "data.rows_altered" and finding.severity is Severity.WARNING


def test_a_prediction_that_rests_on_a_guessed_version_is_a_warning(tmp_path: Path) -> None:
    runs = []
    for name, seed in (("a", 42), ("b", 1)):
        verl_run(tmp_path / name, [], seed=seed)
        (tmp_path / name / "align-run.json").unlink()
        runs.append(RunData(discover([tmp_path / name])))
    (finding,) = compare_data(*runs).findings
    assert finding.id == "data.order.predicted_divergent_step"
    assert finding.severity is Severity.WARNING
