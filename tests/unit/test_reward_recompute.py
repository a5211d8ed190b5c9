"""The scores the trainer used are laid beside the scores that were dumped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import align.data.rung
from align.core.finding import Severity, Side
from align.core.rung import RungStatus
from align.rollout.reward_rung import compare
from dumps.store.run_data import RunData
from tests.unit.trained_runs import SCORES, trained_run

MOVED = (*SCORES[1:], *SCORES[:1])


def ids(reference: RunData, candidate: RunData) -> list[str]:
    return [finding.id for finding in compare(reference, candidate).findings]


def rule(values: Sequence[float | None]) -> list[dict[str, object]]:
    """Give rows 0 to 7 the task add, the others the task compare."""
    tasks = ["add"] * 8 + ["compare"] * 4
    return [{"task": t, "score/add": v} for t, v in zip(tasks, values, strict=True)]


def test_scores_at_other_rows_are_named_with_the_first_row(tmp_path: Path) -> None:
    moved = trained_run(tmp_path / "b", trained=MOVED)
    result = compare(trained_run(tmp_path / "a"), moved)
    assert (result.status, result.findings[0].id) == (RungStatus.DIVERGED, "reward.permuted")
    dumped, trained = result.findings[0].evidence[:2]
    assert (dumped.side, dumped.line, dumped.values) == (Side.CANDIDATE, 1, (1.0,))
    assert trained.values == (0.0,)


def test_the_reference_can_be_the_run_with_permuted_scores(tmp_path: Path) -> None:
    moved = trained_run(tmp_path / "a", trained=MOVED)
    assert ids(moved, trained_run(tmp_path / "b")) == ["reward.permuted"]


def test_a_trainer_that_orders_rows_otherwise_permutes_nothing(tmp_path: Path) -> None:
    order = list(range(12))[::-1]
    other = trained_run(tmp_path / "b", trainer_order=order)
    assert ids(trained_run(tmp_path / "a"), other) == []


def test_float32_and_penalties_are_no_permutation(tmp_path: Path) -> None:
    reference = trained_run(tmp_path / "a")
    rounded = trained_run(tmp_path / "b", trained=[float(np.float32(s + 1e-9)) for s in SCORES])
    assert ids(reference, rounded) == []
    penalised = trained_run(
        tmp_path / "c", trained=[s - 0.1 * (i % 3) for i, s in enumerate(MOVED)]
    )
    assert ids(reference, penalised) == []


def test_both_runs_permuted_alike_are_no_difference(tmp_path: Path) -> None:
    runs = [trained_run(tmp_path / name, trained=MOVED) for name in "ab"]
    assert ids(*runs) == []


def test_zeros_where_a_rule_does_not_apply_are_named(tmp_path: Path) -> None:
    right = trained_run(tmp_path / "a", extras=rule([1.0, 0.0] * 4 + [None] * 4))
    zeros = trained_run(tmp_path / "b", extras=rule([1.0, 0.0] * 4 + [0.0] * 4))
    finding = compare(right, zeros).findings[0]
    assert (finding.id, finding.severity) == ("reward.not_applicable_as_zero", Severity.WARNING)
    assert [(e.side, e.line) for e in finding.evidence] == [
        (Side.CANDIDATE, 9),
        (Side.REFERENCE, 9),
    ]


def test_rules_that_apply_alike_or_really_score_are_left_alone(tmp_path: Path) -> None:
    right = trained_run(tmp_path / "a", extras=rule([1.0, 0.0] * 4 + [None] * 4))
    same = trained_run(tmp_path / "b", extras=rule([0.0, 1.0] * 4 + [None] * 4))
    scored = trained_run(tmp_path / "c", extras=rule([1.0, 0.0] * 4 + [0.0, 1.0, 0.0, 0.0]))
    assert ids(right, same) == []
    assert ids(right, scored) == []


def test_a_rule_that_one_run_never_uses_is_left_alone(tmp_path: Path) -> None:
    unused = trained_run(tmp_path / "a", extras=rule([None] * 12))
    zeros = trained_run(tmp_path / "b", extras=rule([0.0] * 12))
    assert ids(unused, zeros) == []


def labels(reference: RunData, candidate: RunData) -> list[str]:
    return [finding.id for finding in align.data.rung.compare(reference, candidate).findings]


def test_a_run_that_lost_every_label_is_named(tmp_path: Path) -> None:
    kept, lost = trained_run(tmp_path / "a"), trained_run(tmp_path / "b", label="")
    finding = align.data.rung.compare(kept, lost).findings[0]
    assert (finding.id, finding.candidate) == ("data.ground_truth", "empty")
    assert labels(lost, kept) == ["data.ground_truth"]


def test_labels_empty_on_both_sides_or_spelled_otherwise_are_left_alone(tmp_path: Path) -> None:
    lost = [trained_run(tmp_path / name, label="") for name in "ab"]
    assert labels(*lost) == []
    spelled = trained_run(tmp_path / "d", label="#### 1")
    assert labels(trained_run(tmp_path / "c"), spelled) == []
