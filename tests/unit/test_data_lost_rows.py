"""Rows that one run never sees: named as lost where chance cannot leave so many out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.data.lost_rows import log_chance
from align.ladder import compare_data
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.order_runs import BATCH, N, Steps, verl_run
from tests.unit.row_orders import verl_steps

EPOCHS = 10
LOST = [row for row in range(N) if row % 10 == 9]


def steps_without(lost: list[int], seed: int = 42, epochs: int = EPOCHS) -> Steps:
    kept = [row for row in range(N) if row not in lost]
    return [[kept[i] for i in step] for step in verl_steps(len(kept), BATCH, seed, epochs)]


def found(tmp_path: Path, ours: Steps, theirs: Steps) -> tuple[Finding, ...]:
    runs = [
        verl_run(tmp_path / name, steps, data=False, counted=None)
        for name, steps in (("reference", ours), ("candidate", theirs))
    ]
    return compare_data(*runs).findings


def test_lost_rows_come_before_the_order_that_follows_from_them(tmp_path: Path) -> None:
    lost, order = found(tmp_path, steps_without([]), steps_without(LOST))
    assert lost.id == "data.rows_lost" and lost.severity is Severity.ERROR
    # 58 rows make 7 steps of 8 an epoch, ten epochs: 560 prompts drawn
    assert "6 of 64 prompts never appear in the candidate, though it drew 560" in lost.title.en
    assert (lost.reference, lost.candidate) == (64, 58)
    assert lost.mechanism is not None and lost.mechanism.acts_on is Rung.DATA
    assert order.id == "data.order.first_divergent_step"
    assert "It follows from the rows lost" in order.why.en and "丢行" in order.why.zh


def test_rows_that_the_reference_lost_are_named_as_its_own(tmp_path: Path) -> None:
    lost, _ = found(tmp_path, steps_without(LOST), steps_without([]))
    assert "never appear in the reference" in lost.title.en
    assert (lost.reference, lost.candidate) == (58, 64)


def test_another_seed_loses_nothing(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, steps_without([]), steps_without([], seed=7))
    assert finding.id == "data.order.first_divergent_step"


def test_a_short_run_may_have_missed_rows_by_chance(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, steps_without([]), steps_without(LOST, epochs=1))
    assert finding.id == "data.order.first_divergent_step"


def test_an_epoch_replayed_for_ever_leaves_the_same_rows_out_and_loses_none(tmp_path: Path) -> None:
    every_epoch = [*verl_steps(N, 10, 42, 1)] * EPOCHS  # 60 of 64 rows, again and again
    (finding,) = found(tmp_path, [*verl_steps(N, 10, 42, EPOCHS)], every_epoch)
    assert finding.id == "data.order.first_divergent_step"


def test_a_selection_of_rows_that_was_asked_for_is_no_loss(tmp_path: Path) -> None:
    def asked(folder: Path, steps: Steps) -> RunData:
        run = verl_run(folder, steps, data=False, counted=None)
        config = folder / "config.yaml"
        config.write_text(config.read_text().replace("samples: -1", "samples: 58"), "utf-8")
        return RunData(run.run)

    reference = verl_run(tmp_path / "a", steps_without([]), data=False, counted=None)
    result = compare_data(reference, asked(tmp_path / "b", steps_without(LOST)))
    assert [f.id for f in result.findings] == ["data.order.first_divergent_step"]


@pytest.mark.parametrize(("rows", "named"), [([61, 62, 63, 60], True), ([3, 20, 41, 63], False)])
def test_the_longest_prompts_are_dropped_by_a_length_filter(
    tmp_path: Path, rows: list[int], named: bool
) -> None:
    """Prompt i has i + 1 tokens: only the last four can be a filter's."""
    runs = []
    for name, steps in (("a", steps_without([])), ("b", steps_without(rows, epochs=20))):
        verl_run(tmp_path / name, steps, data=False, counted=None)
        _with_ids(tmp_path / name / "rollout", steps)
        runs.append(RunData(discover([tmp_path / name])))
    first = compare_data(*runs).findings[0]
    assert (first.id == "data.order.first_divergent_step") is named
    if named:
        assert "never sees the 4 prompts of 61 or more tokens" in first.title.en
        assert "length filter" in first.title.en


def _with_ids(folder: Path, steps: Steps) -> None:
    for number, rows in enumerate(steps, 1):
        path = folder / f"{number}.jsonl"
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for line, row in zip(lines, (r for r in reversed(rows) for _ in range(2)), strict=True):
            line["prompt_ids"] = [1] * (row + 1)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


@given(st.integers(2, 60), st.data())
def test_the_bound_is_never_below_the_exact_chance_of_an_epoch_sampler(
    num_rows: int, data: st.DataObject
) -> None:
    """Exact: k given rows fall into what each of E epochs leaves out, C(N-k, t-k) / C(N, t)."""
    left_out = data.draw(st.integers(1, num_rows))
    unseen = data.draw(st.integers(1, left_out))
    epochs = data.draw(st.integers(1, 6))
    one = math.comb(num_rows - unseen, left_out - unseen) / math.comb(num_rows, left_out)
    exact = math.comb(num_rows, unseen) * one**epochs
    bound = math.exp(log_chance(num_rows, unseen, epochs * (num_rows - left_out)))
    assert bound >= exact * (1 - 1e-9)
