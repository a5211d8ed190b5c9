"""Rollout dumps that users add to MindSpeed-RL, and their GPU-side twin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import DumpError
from align.core.rollout import RolloutBatch
from align.core.run import ArtifactKind
from dumps.readers import mindspeed_rl_rollout
from dumps.readers.reader import Glimpse, no_progress
from dumps.store.discover import examine

ROW = {"prompt": "1 + 2 = ?", "response": "3", "label": "3"}
GPU_ROW = {"prompt": "1 + 2 = ?", "response": "3", "task": "math", "step": 4, "reward": 1.0}


def read_rows(path: Path, *rows: object) -> RolloutBatch:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), "utf-8")
    (batch,) = mindspeed_rl_rollout.read(path, no_progress)
    return batch


def test_the_only_verifier_is_the_score_and_says_so(tmp_path: Path) -> None:
    rows = [{**ROW, "base_acc": 1.0}, {**ROW, "base_acc": 0.5}]
    batch = read_rows(tmp_path / "mindspeed-rl-rollout.log", *rows)
    assert [row.score for row in batch.rows()] == [1.0, 0.5]
    assert [row.ground_truth for row in batch.rows()] == ["3", "3"]
    assert batch.steps is None and set(batch.absent) == {"steps", "uids"}
    assert batch.notes == ("the score is the only verifier, 'base_acc'",)
    assert batch.extras == {}


def test_several_verifiers_make_no_score_without_their_weights(tmp_path: Path) -> None:
    row = {**ROW, "acc": 1.0, "format": 0.0}
    batch = read_rows(tmp_path / "dump.log", row)
    assert batch.scores is None and "scores" in batch.absent
    assert batch.extras == {"acc": [1.0], "format": [0.0]}
    assert "weights of acc, format" in batch.notes[0]


def test_a_verifier_of_the_users_own_is_found(tmp_path: Path) -> None:
    batch = read_rows(tmp_path / "dump.log", {**ROW, "quality": 0.75})
    assert [row.score for row in batch.rows()] == [0.75]


def test_step_is_a_number_or_a_verifier_by_its_type(tmp_path: Path) -> None:
    steps = read_rows(tmp_path / "a", {**GPU_ROW, "step": 3}, GPU_ROW)
    assert steps.steps is not None and steps.steps.tolist() == [3, 4]
    assert list(steps.extras["task"]) == ["math", "math"]
    verifier = read_rows(tmp_path / "b", {**ROW, "step": 0.333})
    assert verifier.steps is None
    assert [row.score for row in verifier.rows()] == [0.333]


@pytest.mark.parametrize("row", [ROW, GPU_ROW, {**ROW, "acc": 0.0}])
def test_dumps_are_known_by_content(tmp_path: Path, row: object) -> None:
    read_rows(tmp_path / "无扩展名", row)
    artifacts, unknown = examine(tmp_path / "无扩展名")
    assert [(a.kind, a.format) for a in artifacts] == [
        (ArtifactKind.ROLLOUT, "mindspeed_rl_rollout")
    ]
    assert unknown is None


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "response": "b"},
        {"prompt": [{"role": "user", "content": "a"}], "response": "b", "label": "c"},
        {"input": "a", "output": "b", "score": 1.0},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ],
)
def test_other_json_lines_are_left_alone(tmp_path: Path, row: object) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert not mindspeed_rl_rollout.READER.sniff(Glimpse(path, path.stat().st_size))


@given(data=st.binary(max_size=200), keep=st.integers(0, 120))
def test_damage_gives_rows_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, keep: int
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "dump.log"
    good = (json.dumps({**ROW, "acc": 1.0}) + "\n").encode()
    path.write_bytes(good[:keep] + data + b"\n" + good)
    mindspeed_rl_rollout.READER.sniff(Glimpse(path, path.stat().st_size))
    try:
        batches = list(mindspeed_rl_rollout.read(path, no_progress))
    except DumpError:
        pytest.fail("the last line is a row")
    assert batches[-1].responses[-1] == "3"
