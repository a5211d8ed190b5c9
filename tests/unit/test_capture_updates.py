"""Every rank's micro-batches joined into the updates of a step, on numbers chosen by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch
from hypothesis import given
from hypothesis import strategies as st

from align.core.run import ArtifactKind
from dumps.capture.plan import CapturePlan
from dumps.capture.step_batch import StepBatch, files_of
from dumps.capture.update_record import UpdateRecord, step_file, writes
from dumps.capture.writer import write_whole
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.readers.trainer_inputs import read as read_tensors
from dumps.store.assemble_updates import assemble_updates
from dumps.store.discover import discover
from dumps.store.run_index import append_file, append_whole
from dumps.store.verify import verify

ROWS = ((1, 5, 6), (2, 7), (1, 8, 9), (2, 4, 3))  # token ids; the first of each is the prompt


def batch(rows: tuple[tuple[int, ...], ...] = ROWS) -> StepBatch:
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    seen = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    tensors = {"input_ids": ids, "attention_mask": seen, "responses": ids[:, 1:]}
    return StepBatch(1, (), tensors)


def part(
    rank: int, updates: list[list[list[int]]], rows: tuple[tuple[int, ...], ...]
) -> UpdateRecord:
    """Record updates of micro-batches of row numbers; a log_prob is -row - update / 10."""
    record = UpdateRecord()
    for update, micros in enumerate(updates):
        for micro in micros:
            record.begin_micro_batch()
            lengths = [len(rows[i]) for i in micro]
            log_probs = [[-i - update / 10.0] * (max(lengths) - 1) for i in micro]
            record.keep(
                {
                    "input_ids": torch.tensor([t for i in micro for t in rows[i]]),
                    "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
                    "log_probs": torch.tensor(log_probs, dtype=torch.float64),
                    "policy_loss": torch.tensor(1.0 + rank),
                }
            )
        record.keep_rows(
            f"update.{update}.gradient_squares", ["w"], torch.tensor([9.0 if rank == 0 else 16.0])
        )
        record.keep_norm(5.0)
        record.end_update()
    return record


def recorded(
    run: Path,
    *ranks: list[list[list[int]]],
    rows: tuple[tuple[int, ...], ...] = ROWS,
    adds_up: bool = True,
) -> TrainerInputs | None:
    """Write a step of one batch and some ranks, join it, and read the result."""
    files = files_of(batch(), CapturePlan(run))
    for rank, updates in enumerate(ranks):
        record = part(rank, updates, rows)
        notes = record.notes(1, rank, "actor", losses_add_up=adds_up)
        files[step_file(1, f"actor-{rank}")] = writes(record.to_host(), notes)
    for name, write in files.items():
        append_file(run, "driver-0", write_whole(run / name, write), 1)
    append_whole(run, "driver-0", 1)
    assemble_updates(run)
    path = run / "updates/000001.safetensors"
    return read_tensors(path, lambda _: None) if path.exists() else None


def listed(tensors: TrainerInputs | None, name: str) -> list:
    assert tensors is not None
    tensor = tensors.tensor(name)
    assert tensor is not None
    return tensor.tolist()


def test_rows_of_all_ranks_are_found_in_the_batch(tmp_path: Path) -> None:
    joined = recorded(tmp_path, [[[2], [0]], [[1, 3]]], [[[3, 1]], [[2, 0]]])
    assert listed(joined, "rows") == [2, 0, 3, 1, 1, 3, 2, 0]
    assert listed(joined, "update") == [0, 0, 0, 0, 1, 1, 1, 1]
    assert listed(joined, "micro_batch") == [0, 1, 2, 2, 0, 0, 1, 1]
    assert listed(joined, "log_probs") == [
        *([-2.0, -2.0], [0.0, 0.0], [-3.0, -3.0], [-1.0, -1.0]),
        *([-1.1, -1.1], [-3.1, -3.1], [-2.1, -2.1], [-0.1, -0.1]),
    ]


def test_norms_add_up_over_ranks_and_losses_are_their_mean(tmp_path: Path) -> None:
    joined = recorded(tmp_path, [[[2], [0]]], [[[3, 1]]])
    assert listed(joined, "align/norm_of_gradients") == [5.0]  # 9 + 16
    assert listed(joined, "actor/grad_norm") == [5.0]
    assert listed(joined, "actor/pg_loss") == [(1.0 + 1.0 + 2.0) / 2]


def test_losses_that_do_not_add_up_are_left_out(tmp_path: Path) -> None:
    joined = recorded(tmp_path, [[[0, 1]]], adds_up=False)
    assert joined is not None and "actor/pg_loss" not in joined.shapes


def test_a_row_that_is_not_in_the_batch_leaves_the_step_out(tmp_path: Path) -> None:
    assert recorded(tmp_path, [[[0, 1]]], rows=((1, 5, 5), *ROWS[1:])) is None
    assert verify(tmp_path).is_whole


def test_what_is_joined_is_known_to_reports_and_verifies(tmp_path: Path) -> None:
    recorded(tmp_path, [[[0, 1], [2, 3]]])
    run = discover([tmp_path])
    assert [a.path.name for a in run.of_kind(ArtifactKind.UPDATES)] == ["000001.safetensors"]
    assert verify(tmp_path).is_whole and verify(tmp_path).whole_steps == (1,)
    assert assemble_updates(tmp_path) == []


@given(order=st.permutations(range(4)), cut=st.integers(0, 4))
def test_any_order_and_split_of_a_batch_is_put_back(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cut: int
) -> None:
    ranks = [[[half]] for half in (order[:cut], order[cut:]) if half]
    joined = recorded(tmp_path_factory.mktemp("run"), *ranks)
    assert listed(joined, "rows") == order
