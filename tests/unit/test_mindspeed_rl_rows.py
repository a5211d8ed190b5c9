"""Rows and scores that MindSpeed-RL's dock hands to the update, without MindSpeed-RL."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch

from align.core.rollout_record import RolloutRecord
from dumps.capture.plan import CapturePlan, What
from dumps.capture.session import Session
from dumps.capture.taps import mindspeed_rl
from dumps.capture.taps.mindspeed_rl_rows import TrainedRows, scores_of

PAD = 9
BATCH = {
    "input_ids": torch.tensor([[1, 2, 5, 6, PAD], [3, 7, PAD, PAD, PAD]], dtype=torch.int32),
    "responses": torch.tensor([[5, 6], [7, PAD]], dtype=torch.int32),
    "prompt_length": torch.tensor([[2], [1]]),
    "response_length": torch.tensor([[2], [1]]),
    "advantages": torch.tensor([[0.5, 0.5], [-1.0, 9.0]]),
    "old_log_prob": torch.tensor([[-1.0, -2.0], [-3.0, 9.0]]),
}


class Dock:
    """A dock as Ray gives it to a worker; ``normalised`` holds scores as up to 2.1.0."""

    def __init__(self, *, normalised: bool = False, ready: int = 4) -> None:
        self.columns = {"rm_scores": [torch.tensor([0.25 * row]) for row in range(4)]}
        if normalised:
            self.columns["token_level_rewards"] = self.columns["rm_scores"]
        self.status = {name: torch.arange(4) < ready for name in self.columns}
        self.get_experience_status = SimpleNamespace(remote=lambda: self.status)
        self._get = SimpleNamespace(remote=self.read)

    def read(self, columns: list[str], rows: list[int]) -> list[list[torch.Tensor]]:
        return [[self.columns[name][row] for row in rows] for name in columns]


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda value: value))


def kept(*batches: tuple[dict[str, Any], list[int]]) -> TrainedRows:
    rows = TrainedRows()
    for batch, index in batches:
        rows.keep(batch, index)
    return rows


def test_rows_stand_with_their_response_in_columns_of_its_own() -> None:
    made = kept((BATCH, [0, 1])).tensors(PAD, {0: 1.5, 1: 0.5})
    assert made["input_ids"].tolist() == [[1, 2, 5, 6], [PAD, 3, 7, PAD]]
    assert made["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 1, 1, 0]]
    assert made["responses"].tolist() == [[5, 6], [7, PAD]]
    assert made["response_mask"].tolist() == [[1, 1], [1, 0]]
    assert made["advantages"].tolist() == [[0.5, 0.5], [-1.0, 0.0]]
    assert made["old_log_probs"].tolist() == [[-1.0, -2.0], [-3.0, 0.0]]
    assert made["token_level_rewards"].tolist() == [[0.0, 1.5], [0.5, 0.0]]


def test_batches_of_one_step_are_laid_below_each_other() -> None:
    short = {name: value[1:] for name, value in BATCH.items()}
    made = kept((short, [3]), (BATCH, [0, 1])).tensors(PAD, {})
    assert made["input_ids"].tolist() == [[PAD, 3, 7, PAD], [1, 2, 5, 6], [PAD, 3, 7, PAD]]
    assert "token_level_rewards" not in made


def test_the_mask_is_that_of_the_loss_where_rows_keep_their_order() -> None:
    rows = kept((BATCH, [0, 1]))
    rows.masks = [torch.tensor([[0, 1]]), torch.tensor([[0, 1]])]  # a micro-batch a row
    made = rows.tensors(PAD, {0: 1.5, 1: 0.5})
    assert made["response_mask"].tolist() == [[0, 1], [0, 1]]
    assert made["token_level_rewards"].tolist() == [[0.0, 1.5], [0.5, 0.0]]


def test_a_rank_that_was_handed_nothing_has_nothing() -> None:
    assert TrainedRows().tensors(PAD, {}) == {}


def test_scores_are_read_from_the_dock() -> None:
    assert scores_of(SimpleNamespace(td=Dock()), [1, 3]) == {1: 0.25, 3: 0.75}


@pytest.mark.parametrize("dock", [Dock(normalised=True), Dock(ready=2), SimpleNamespace()])
def test_what_is_no_score_or_not_there_is_not_taken_for_one(dock: Any) -> None:
    """Normalised within its group already, not written yet, or held by a transfer queue."""
    assert scores_of(SimpleNamespace(td=dock), [1, 3]) == {}


def test_a_step_writes_scores_and_the_rows_of_its_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mindspeed_rl, "_worker", mindspeed_rl._Worker())
    session = Session(CapturePlan(tmp_path, (What.ROLLOUTS, What.INPUTS, What.LOG_PROBS)))
    worker = SimpleNamespace(
        iteration=0,
        rl_config=SimpleNamespace(),
        td=Dock(),
        tokenizer=SimpleNamespace(pad=0, eod=PAD),  # an id of 0 counts as none
        parallel_state=SimpleNamespace(),
        sampling_transfer_dock=None,
    )
    held = mindspeed_rl._worker
    held.records = [
        RolloutRecord(prompt_ids=(1, 2), response_ids=(5, 6), step=1, extras={"dock_row": 2}),
        RolloutRecord(prompt_ids=(3,), response_ids=(7,), step=1, extras={"dock_row": 1}),
    ]
    for stage in ("actor_log_prob", "actor_train"):
        after = mindspeed_rl.dispatched(session, worker, stage, ["responses"], 2)
        assert (after is None) is (stage == "actor_log_prob")
    assert after is not None
    after((BATCH, torch.tensor([2, 1])))
    mindspeed_rl.updated(session, worker)(None)
    session.drain()
    assert not (tmp_path / "capture.log").exists()
    from dumps.readers.reader import no_progress
    from dumps.readers.rollout_store import read_store
    from dumps.readers.trainer_inputs import read

    (file,) = tmp_path.rglob("step=000001.parquet")
    assert [record.score for record in read_store(file)] == [0.5, 0.25]  # type: ignore[union-attr]
    (file,) = tmp_path.glob("trainer_inputs/rank=0/000001.safetensors")
    rewards = read(file, no_progress).tensor("token_level_rewards")
    assert rewards is not None and rewards.tolist() == [[0.0, 0.5], [0.25, 0.0]]


def test_what_the_trainer_prints_of_an_iteration_is_kept(tmp_path: Path) -> None:
    session = Session(CapturePlan(tmp_path, (What.METRICS,)))
    mindspeed_rl.logged(session, None, "finish actor update")
    mindspeed_rl.logged(session, None, {"actor/lr": 1e-6, "name": "x"}, 3, 10)
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert text == '{"step": 3, "data": {"actor/lr": 1e-06}}\n'
