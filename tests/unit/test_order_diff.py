"""Why two runs saw other rows: each planted cause is named, and clean twins stay silent.

Rows are planted by the second implementation of tests/unit/row_orders.py.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from align.core.rung import RungResult, RungStatus
from align.data.order_search import find_order
from align.data.order_settings import OrderSettings
from align.data.replay import Rows
from align.data.samplers.mindspeed_rl_old import MindSpeedRLOld
from align.data.witness import PromptWitness
from align.ladder import compare_data
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.data_files import write_indexed
from tests.unit.order_runs import BATCH, STEPS, N, data_set, mindspeed_rl_run, steps_of, verl_run
from tests.unit.row_orders import mindspeed_rl_steps, verl_steps


def title(result: RungResult) -> str:
    (finding,) = result.findings
    assert result.status is RungStatus.DIVERGED
    assert finding.id == "data.order.first_divergent_step"
    assert finding.title.zh and "None" not in finding.title.zh
    return finding.title.en


@pytest.fixture
def reference(tmp_path: Path) -> RunData:
    return verl_run(tmp_path / "reference", steps_of(42))


@pytest.mark.parametrize("data", [True, False])
def test_a_run_with_the_same_settings_is_aligned(
    tmp_path: Path, reference: RunData, data: bool
) -> None:
    result = compare_data(reference, verl_run(tmp_path / "candidate", steps_of(42), data=data))
    assert result.status is RungStatus.ALIGNED and result.findings == ()


@pytest.mark.parametrize("data", [True, False])
def test_another_seed_is_named(tmp_path: Path, reference: RunData, data: bool) -> None:
    candidate = verl_run(tmp_path / "candidate", steps_of(1), seed=1, data=data)
    said = title(compare_data(reference, candidate))
    assert "from step 1 on" in said and "seed 42 in the reference, 1 in the candidate" in said


def test_no_seed_is_a_seed_of_its_own(tmp_path: Path, reference: RunData) -> None:
    candidate = verl_run(tmp_path / "candidate", steps_of(67280421310721), seed=None)
    assert "67280421310721 in the candidate" in title(compare_data(reference, candidate))


def test_loader_processes_are_named_where_only_they_differ(
    tmp_path: Path, reference: RunData
) -> None:
    candidate = verl_run(tmp_path / "candidate", steps_of(42, 8), workers=8)
    said = title(compare_data(reference, candidate))
    assert "loader processes 0 in the reference, 8 in the candidate" in said and "seed" not in said


def test_one_and_eight_loader_processes_are_no_difference(tmp_path: Path) -> None:
    runs = [verl_run(tmp_path / f"{w}", steps_of(42, w), workers=w) for w in (1, 8)]
    assert compare_data(*runs).status is RungStatus.ALIGNED


def test_the_sampler_of_an_older_verl_is_named(tmp_path: Path, reference: RunData) -> None:
    # torch's sampler gives the same first epoch: the orders part at step 9
    candidate = verl_run(tmp_path / "candidate", steps_of(42, torchdata=False), version="0.5.0")
    said = title(compare_data(reference, candidate))
    assert "from step 9 on" in said
    assert "sampler torchdata in the reference, torch in the candidate" in said


def test_a_seed_that_is_not_the_configured_one_is_found(tmp_path: Path, reference: RunData) -> None:
    candidate = verl_run(tmp_path / "candidate", steps_of(7), seed=42)
    said = title(compare_data(reference, candidate))
    assert "the candidate's rows are those of seed 7, not 42" in said


def test_a_version_that_is_not_the_stated_one_is_found(tmp_path: Path, reference: RunData) -> None:
    candidate = verl_run(tmp_path / "candidate", steps_of(42, torchdata=False))
    said = title(compare_data(reference, candidate))
    assert "the candidate's rows are those of torch's sampler (verl up to 0.6)" in said


def test_rows_in_file_order_are_found(tmp_path: Path, reference: RunData) -> None:
    in_order = [list(range(i * BATCH, (i + 1) * BATCH)) for i in range(8)]
    said = title(compare_data(reference, verl_run(tmp_path / "candidate", in_order)))
    assert "rows in file order, not shuffled" in said


def test_mindspeed_rls_order_is_recognised(tmp_path: Path, reference: RunData) -> None:
    steps = mindspeed_rl_steps(N, BATCH, 42, 20)[:STEPS]
    # a run of verl's configuration whose rows come from a permutation of three repeats
    verl_run(tmp_path / "candidate", steps)
    config = tmp_path / "candidate" / "config.yaml"
    config.write_text(config.read_text() + "  total_training_steps: 20\n", "utf-8")
    said = title(compare_data(reference, RunData(discover([tmp_path / "candidate"]))))
    assert "MindSpeed-RL's sampler" in said


def test_a_replayed_epoch_after_a_restart_is_found_with_its_place(
    tmp_path: Path, reference: RunData
) -> None:
    steps = [*steps_of(42)]
    replayed = [*steps[:11], *steps[3:12]]  # steps 12… start again at offset 3 of epoch 0
    said = title(compare_data(reference, verl_run(tmp_path / "candidate", replayed)))
    assert "from step 12 on" in said
    assert "the candidate's steps 12… replay epoch 0 from offset 3" in said


def test_a_replay_is_found_without_data_set_or_configuration(tmp_path: Path) -> None:
    steps = [*steps_of(42)]
    runs = []
    for name, planted in (("a", steps), ("b", [*steps[:11], *steps[3:12]])):
        verl_run(tmp_path / name, planted)
        runs.append(RunData(discover([tmp_path / name / "rollout"])))
    said = title(compare_data(*runs))
    assert "the candidate's steps 12… have the prompts of the reference's steps 4…" in said


def test_settings_explain_the_order_where_the_log_alone_counts_the_rows(tmp_path: Path) -> None:
    a = verl_run(tmp_path / "a", steps_of(42), data=False)
    b = verl_run(tmp_path / "b", steps_of(1), seed=1, data=False)
    assert "seed 42 in the reference, 1 in the candidate" in title(compare_data(a, b))


def test_a_random_order_is_blamed_on_nothing(tmp_path: Path, reference: RunData) -> None:
    import random

    rows = random.Random(5).sample(range(N), N)
    steps = [rows[i : i + BATCH] for i in range(0, N, BATCH)]
    said = title(compare_data(reference, verl_run(tmp_path / "candidate", steps)))
    assert "the two configurations give the same rows at this step" in said
    assert "seed" not in said and "replay epoch" not in said


def test_settings_whose_orders_share_other_rows_than_were_seen_explain_nothing(
    tmp_path: Path,
) -> None:
    a = verl_run(tmp_path / "a", steps_of(42), data=False)
    shuffled = steps_of(99)  # not the order of the seed that its configuration states
    b = verl_run(tmp_path / "b", shuffled, seed=1, data=False)
    common = len(set(steps_of(42)[0]) & set(shuffled[0]))
    assert common != len(set(steps_of(42)[0]) & set(steps_of(1)[0]))  # the test can tell
    assert title(compare_data(a, b)).endswith("are the same there")


def test_a_filter_that_left_other_rows_is_named_by_the_logs_counts(
    tmp_path: Path, reference: RunData
) -> None:
    folder = tmp_path / "candidate"
    verl_run(folder, verl_steps(61, BATCH, 42, 2), data=False)
    config, log = folder / "config.yaml", folder / "run.log"
    config.write_text(config.read_text().replace("prompts: false", "prompts: true"), "utf-8")
    counted = "dataset len: 64\nfilter dataset len: 61"
    log.write_text(log.read_text().replace("dataset len: 64", counted), "utf-8")
    # neither run holds its data set: only the logs tell
    verl_run(tmp_path / "again", steps_of(42), data=False)
    ours, theirs = (RunData(discover([tmp_path / name])) for name in ("again", "candidate"))
    said = title(compare_data(ours, theirs))
    assert "64 rows are left for the sampler in the reference, 61 in the candidate" in said


def test_train_iters_and_a_stale_index_are_named_for_mindspeed_rl(tmp_path: Path) -> None:
    for name, iters in (("reference", 8), ("same", 7), ("candidate", 9)):
        mindspeed_rl_run(tmp_path / name, iters=iters, gbs=BATCH)
        data_set(tmp_path / name / "data.parquet")
    ours, same, theirs = (
        RunData(discover([tmp_path / name])) for name in ("reference", "same", "candidate")
    )
    said = compare_data(ours, theirs).findings[0]
    assert said.id == "data.order.predicted_divergent_step"
    assert "train_iters 8 in the reference, 9 in the candidate" in said.title.en
    assert compare_data(ours, same).findings == ()  # one pass over the rows is enough for both
    settings = OrderSettings("mindspeed_rl", BATCH, 42, shuffle=True, total_steps=8)
    stale = MindSpeedRLOld(N, 64, 42).epoch(0)
    steps = [stale[np.array(step)] for step in mindspeed_rl_steps(N, BATCH, 42, 8)]
    seen = {k: Counter(step.tolist()) for k, step in enumerate(steps, 1)}
    found = find_order(settings, Rows(N), PromptWitness(seen, np.arange(N)))
    assert found is not None and found.changed is not None
    assert "stale *_shuffle_idx.npy" in found.changed.en


@pytest.mark.parametrize("stale", [True, False])
def test_a_stale_index_on_one_side_is_named(tmp_path: Path, stale: bool) -> None:
    runs = []
    for name in "ab":
        mindspeed_rl_run(tmp_path / name)
        write_indexed(tmp_path / name)
        runs.append(tmp_path / name)
    index = MindSpeedRLOld(23, 80, 42).epoch(0) if stale else np.tile(np.arange(23), 4)
    np.save(runs[1] / "data_train_indexmap_80ns_42s_nb23_decoder_packed_shuffle_idx.npy", index)
    result = compare_data(*(RunData(discover([folder])) for folder in runs))
    assert len(result.findings) == stale
    for finding in result.findings:
        assert finding.id == "data.order.predicted_divergent_step"
        assert "the candidate replays a stale *_shuffle_idx.npy" in finding.title.en
        assert finding.evidence[0].source.endswith("_shuffle_idx.npy")
