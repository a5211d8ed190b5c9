"""A training that counts epochs has a length once its log says how many rows there are."""

from __future__ import annotations

from pathlib import Path

from align.config.rung import compare
from dumps.store.discover import discover
from dumps.store.run_data import RunData

CONFIG = """{'actor_rollout_ref': {'actor': {'optim': {'lr': 1e-06}},
                       'rollout': {'n': 8, 'temperature': 1.0}},
 'algorithm': {'adv_estimator': 'grpo'},
 'data': {'train_batch_size': 100},
 'trainer': {'total_epochs': 3}}
"""


def run(folder: Path, kept: int) -> RunData:
    folder.mkdir()
    log = f"{CONFIG}dataset len: 1200\nfilter dataset len: {kept}\nstep:1 - actor/lr:1e-06\n"
    (folder / "console.log").write_text(log, encoding="utf-8")
    return RunData(discover([folder]))


def total_steps(reference: RunData, candidate: RunData) -> tuple[object, object]:
    table = next(t for t in compare(reference, candidate).tables if t.id == "config.compared")
    row = next(r for r in table.rows if r[0] == "derived.total_steps")
    return row[3], row[4]


def test_steps_are_whole_batches_of_the_kept_rows_in_every_epoch(tmp_path: Path) -> None:
    runs = run(tmp_path / "a", 1199), run(tmp_path / "b", 1000)
    assert total_steps(*runs) == (33, 30)  # 1199 // 100 × 3 and 1000 // 100 × 3


def test_another_number_of_rows_is_a_difference_and_the_same_is_none(tmp_path: Path) -> None:
    first, second, twin = (run(tmp_path / n, k) for n, k in (("a", 1100), ("b", 900), ("c", 1100)))
    ids = {finding.id for finding in compare(first, second).findings}
    assert "config.derived.total_steps" in ids
    assert "config.derived.total_steps" not in {f.id for f in compare(first, twin).findings}
