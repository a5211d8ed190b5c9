"""Ranks that share a model with one that records its losses: tensor and pipeline parallel ones."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch

from align.referee.captured_updates import recorded_updates
from dumps.capture.update_record import UpdateRecord, step_file, writes
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.test_capture_updates import listed, recorded
from tests.unit.test_captured_updates import captured_run


def test_a_joined_loss_is_the_mean_of_the_ranks_that_have_one(tmp_path: Path) -> None:
    joined = recorded(tmp_path, [[[2], [0]]], [[]])
    assert listed(joined, "actor/pg_loss") == [1.0 + 1.0]
    assert listed(joined, "align/norm_of_gradients") == [5.0]  # 9 + 16: both have gradients


def test_without_any_loss_none_is_joined(tmp_path: Path) -> None:
    joined = recorded(tmp_path, [[[2]]], adds_up=False)
    assert joined is not None and "actor/pg_loss" not in joined.shapes


def test_the_referee_takes_the_mean_of_the_ranks_that_have_a_loss(tmp_path: Path) -> None:
    both = list(recorded_updates(captured_run(tmp_path / "two")))
    folder = tmp_path / "four"
    captured_run(folder)
    for rank in (2, 3):
        record = UpdateRecord()
        for _ in both:
            name = f"update.{record.update}.gradient_squares"
            record.keep_rows(name, ["v"], torch.tensor([4.0], dtype=torch.float64))
            record.end_update()
        writes(record.to_host(), record.notes(1, rank, "actor", losses_add_up=True))(
            folder / step_file(1, f"actor-{rank}")
        )
    four = list(recorded_updates(RunData(discover([folder]))))
    losses = [[update.reported["actor/pg_loss"] for update in each] for each in (both, four)]
    assert losses[0] == losses[1]
    assert [u.norm_of_gradients for u in four] == [25.0**0.5] * 2  # 17 and 4 of each
