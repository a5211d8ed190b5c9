"""Updates of a captured run come together from the micro-batches of its ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the referee computes with torch")

import torch

from align.core.rung import RungStatus
from align.referee.captured_updates import recorded_updates
from align.referee.gradient_norms import compare_norms
from align.referee.loss_rung import compare
from align.referee.moved_rows import moved_rows
from align.referee.update import Update
from dumps.capture.update_record import UpdateRecord, step_file, writes
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.updated_runs import Loss, Tokens, averaged, surrogate, tokens, updated_run

DECLARED = Loss(entropy_coef=0.0)
RANKS, MICRO = 2, 2
UPDATES = ((0, 1, 2, 3), (4, 5, 6, 7))  # rows, of which each rank has one micro-batch


Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def captured_run(
    folder: Path,
    loss: Loss = DECLARED,
    *,
    given: Tokens | None = None,
    norm: float = 1.0,
    second_norm: float = 1.0,
    change: Change = lambda micro: micro,
) -> RunData:
    """Write what two ranks keep of two updates, their losses by plain arithmetic.

    Args:
        norm: factor by which the reported gradient norm is off.
        second_norm: factor of the second update's gradients.
        change: of what is kept of a micro-batch of the second update.
    """
    given = given or tokens()
    updated_run(folder, loss, entropy=0.0, given=given, with_updates=False)
    for rank in range(RANKS):
        record = UpdateRecord()
        for rows in UPDATES:
            own = rows[rank * MICRO : (rank + 1) * MICRO]
            record.begin_micro_batch()
            micro, larger = kept(given, own, rows, loss), second_norm if record.update else 1.0
            record.keep(change(micro) if record.update else micro)
            name = f"update.{record.update}.gradient_squares"
            squares = torch.tensor([8.0 + rank], dtype=torch.float64) * larger**2
            record.keep_rows(name, ["w"], squares)
            record.keep_norm(17.0**0.5 * norm * larger)
            record.end_update()
        path = folder / step_file(1, f"actor-{rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        writes(record.to_host(), record.notes(1, rank, "actor", losses_add_up=True))(path)
    return RunData(discover([folder]))


def kept(
    given: Tokens, own: tuple[int, ...], rows: tuple[int, ...], loss: Loss
) -> dict[str, torch.Tensor]:
    """What a rank keeps of a micro-batch; verl's losses are scaled by the number of ranks."""
    part = averaged(given, own, loss, lambda i, j: surrogate(given, i, j, loss))
    share = int(given.mask[list(own)].sum()) / int(given.mask[list(rows)].sum())
    whole = part if loss.by_micro_batch else part * share * RANKS
    return {
        "log_probs": torch.tensor(given.new[list(own)]),
        "old_log_probs": torch.tensor(given.old[list(own)]),
        "advantages": torch.tensor(given.advantage[list(own)]),
        "response_mask": torch.tensor(given.mask[list(own)]),
        "policy_loss": torch.tensor(whole),
    }


def test_an_update_is_the_rows_of_all_ranks_with_the_columns_of_its_batch(tmp_path: Path) -> None:
    given = tokens()
    first, second = recorded_updates(captured_run(tmp_path, given=given))
    assert (first.rows.tolist(), second.rows.tolist()) == (list(UPDATES[0]), list(UPDATES[1]))
    assert first.micro_batches.tolist() == [0, 0, 1, 1]
    assert second.ref_log_prob is not None
    np.testing.assert_array_equal(second.ref_log_prob.numpy(), given.ref[4:].astype(np.float64))
    expected = averaged(given, UPDATES[0], DECLARED, lambda i, j: surrogate(given, i, j, DECLARED))
    assert first.reported["actor/pg_loss"] == pytest.approx(expected, rel=1e-6)
    assert first.norm_of_gradients == pytest.approx(17.0**0.5)


def test_captured_losses_as_declared_are_aligned(tmp_path: Path) -> None:
    runs = [captured_run(tmp_path / n, given=tokens(s)) for n, s in (("a", 0), ("b", 1))]
    assert compare(*runs).status is RungStatus.ALIGNED
    norms = compare_norms(*runs)
    assert norms is not None and norms.status is RungStatus.ALIGNED


@pytest.mark.parametrize(
    ("finding", "loss"),
    [
        ("loss.aggregation", Loss(entropy_coef=0.0, by_micro_batch=True)),
        ("loss.clip_range", Loss(entropy_coef=0.0, high=0.2)),
        ("loss.kl_sign", Loss(entropy_coef=0.0, kl_coef=-0.05)),
    ],
)
def test_another_loss_of_a_captured_run_is_named(tmp_path: Path, finding: str, loss: Loss) -> None:
    result = compare(captured_run(tmp_path / "a"), captured_run(tmp_path / "b", loss))
    assert [found.id for found in result.findings] == [finding]


def test_a_captured_norm_that_counts_ranks_twice_is_named(tmp_path: Path) -> None:
    norms = compare_norms(captured_run(tmp_path / "a"), captured_run(tmp_path / "b", norm=2.0))
    assert norms is not None
    assert [found.id for found in norms.findings] == ["backward.grad_norm"]


@pytest.mark.parametrize(
    ("finding", "name", "change"),
    [
        ("loss.advantages_moved", "advantages", lambda tensor: tensor.roll(1, 0) + 0.5),
        ("loss.mask_shifted", "response_mask", lambda tensor: tensor.roll(1, 1)),
        ("loss.mask_differs", "response_mask", lambda tensor: tensor * 0 + 1),
    ],
)
def test_an_update_that_trains_on_something_else_than_its_rows_were_given_is_named(
    tmp_path: Path, finding: str, name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    wrong = captured_run(tmp_path / "b", change=lambda m: {**m, name: change(m[name])})
    found = [each.id for each in compare(captured_run(tmp_path / "a"), wrong).findings]
    assert finding in found


def test_a_row_left_out_of_an_update_whole_is_a_choice(tmp_path: Path) -> None:
    def leave_out(micro: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mask = micro["response_mask"].clone()
        mask[0] = 0
        return {**micro, "response_mask": mask}

    found = moved_rows(captured_run(tmp_path, change=leave_out))
    assert found is None


def test_a_loss_that_is_given_no_old_log_probs_has_those_of_its_batch(tmp_path: Path) -> None:
    given = tokens()

    def without(micro: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        first = next(
            i
            for i in range(len(given.new))
            if (micro["log_probs"][0] == torch.tensor(given.new[i])).all()
        )
        own = torch.tensor(given.ref[first : first + MICRO])
        return {k: t for k, t in micro.items() if k != "old_log_probs"} | {"ref_log_prob": own}

    updates: list[Update] = list(recorded_updates(captured_run(tmp_path, change=without)))
    assert updates[1].rows.tolist() == list(UPDATES[1])
    np.testing.assert_array_equal(updates[1].old_log_probs.numpy(), given.old[4:].astype(float))


@pytest.mark.parametrize("times", [1.4, 0.7, 3.0])
def test_a_later_update_of_equal_inputs_and_another_gradient_is_named(
    tmp_path: Path, times: float
) -> None:
    own, other = captured_run(tmp_path / "a"), captured_run(tmp_path / "b", second_norm=times)
    norms = compare_norms(own, other)
    assert norms is not None
    (finding,) = norms.findings
    assert finding.id == "backward.first_divergence"
    assert "update 2 of step 1" in finding.title.en


def test_a_later_update_of_other_losses_is_not_compared(tmp_path: Path) -> None:
    other = captured_run(tmp_path / "b", Loss(entropy_coef=0.0, high=0.2), second_norm=1.4)
    norms = compare_norms(captured_run(tmp_path / "a"), other)
    assert norms is not None and norms.findings == ()
