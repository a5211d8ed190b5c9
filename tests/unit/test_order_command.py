"""``align data order`` as a user meets it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from align.cli.data import command
from align.core.errors import AlignError
from align.core.metric import MetricLog
from align.data.order_search import find_order
from align.data.order_settings import OrderSettings
from align.data.replay import Rows
from align.data.samplers.balance_batch import balanced_order, split_over_ranks
from align.data.samplers.mindspeed_rl_old import MindSpeedRLOld
from align.data.torch_generator import Int64
from align.data.witness import Witness, length_witness
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.data_files import write_indexed
from tests.unit.order_runs import mindspeed_rl_run, steps_of, verl_run
from tests.unit.row_orders import megatron_samples, mindspeed_rl_steps


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["order", *map(str, arguments)])


def rows(*arguments: object) -> list[int]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    found = json.loads(result.stdout)["rows"]
    assert isinstance(found, list)
    return found


def refuses(words: str, *arguments: object) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, AlignError), result.exception
    assert words in str(result.exception) and result.exception.fix


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_rows_of_a_real_run_are_those_it_dumped(reference_runs: Path, step: int) -> None:
    folder, data = reference_runs / "v091_v1_fsdp2", reference_runs / "tiny_model_tokenizer_data"
    found = rows(folder, "--data", data / "train.parquet", "--step", step)
    asked = [p[0]["content"] for p in pq.read_table(data / "train.parquet")["prompt"].to_pylist()]
    dump = (folder / "rollout" / f"{step}.jsonl").read_text("utf-8").splitlines()
    seen = Counter(json.loads(line)["input"].split("\n")[1] for line in dump)
    assert seen == Counter(asked[row] for row in found for _ in range(4))


def test_steps_count_over_the_run_or_in_an_epoch(tmp_path: Path) -> None:
    verl_run(tmp_path, steps_of(42))
    planted = steps_of(42)
    assert rows(tmp_path, "--step", 11) == planted[10]
    assert rows(tmp_path, "--step", 3, "--epoch", 1) == planted[10]
    refuses("an epoch has 8 steps", tmp_path, "--step", 9, "--epoch", 0)


def test_mindspeed_rls_rows_follow_its_yaml_and_its_index(tmp_path: Path) -> None:
    mindspeed_rl_run(tmp_path)
    index = write_indexed(tmp_path)
    planted = mindspeed_rl_steps(23, 4, 42, 20)
    for step in (1, 7, 20):
        assert rows(tmp_path, "--step", step) == planted[step - 1]
        assert rows(tmp_path / "configs", "--data", index, "--step", step) == planted[step - 1]


def test_mindspeed_rls_filter_drops_prompts_of_exactly_the_limit(tmp_path: Path) -> None:
    yaml = mindspeed_rl_run(tmp_path)
    yaml.write_text(yaml.read_text().replace("length: 2048", "length: 5"), "utf-8")
    write_indexed(tmp_path)  # lengths 2 to 8
    kept = [i for i in range(23) if 2 + i % 7 < 5]
    planted = mindspeed_rl_steps(len(kept), 4, 42, 20)
    assert rows(tmp_path, "--step", 2) == [kept[row] for row in planted[1]]


def test_rows_kept_for_validation_are_not_trained_on(tmp_path: Path) -> None:
    yaml = mindspeed_rl_run(tmp_path)
    yaml.write_text(yaml.read_text().replace("split: 100,0,0", "split: 80,20,0"), "utf-8")
    write_indexed(tmp_path)
    planted = mindspeed_rl_steps(18, 4, 42, 20)  # round(0.8 * 23)
    for step in (1, 9, 20):
        assert rows(tmp_path, "--step", step) == planted[step - 1]
    yaml.write_text(yaml.read_text().replace("80,20,0", "most of it"), "utf-8")
    refuses("is no list of shares", tmp_path, "--step", 1)


def test_megatrons_rows_are_the_documents_its_samples_begin_in(tmp_path: Path) -> None:
    yaml = mindspeed_rl_run(tmp_path, iters=5)
    yaml.write_text(
        yaml.read_text().replace("  seed: 42", "  seed: 1234\n  seq_length: 8"), "utf-8"
    )
    write_indexed(tmp_path)  # lengths 2 to 8
    lengths = [2 + i % 7 for i in range(23)]
    planted = megatron_samples(lengths, 8, 20, 1234, extra=True)
    for step in (1, 5):
        found = rows(tmp_path, "--sampler", "megatron", "--step", step)
        assert found == [sample[0] for sample in planted[(step - 1) * 4 : step * 4]]
    refuses("how many tokens each document has", *_megatron_by_count(tmp_path))


def _megatron_by_count(folder: Path) -> tuple[object, ...]:
    for path in folder.glob("*_document.*"):
        path.unlink()
    return folder, "--sampler", "megatron", "--num-rows", 23, "--step", 1


def test_a_stale_index_is_replayed(tmp_path: Path) -> None:
    mindspeed_rl_run(tmp_path)
    write_indexed(tmp_path)
    stale = MindSpeedRLOld(23, 80, 42).epoch(0)
    np.save(tmp_path / "stale.npy", stale)
    # the loader permutes the places of the index, whatever it holds
    places = mindspeed_rl_steps(len(stale), 4, 42, 1)[2]
    found = rows(tmp_path, "--index", tmp_path / "stale.npy", "--step", 3)
    assert found == [int(stale[place]) for place in places]
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    refuses("is no NumPy array", tmp_path, "--index", tmp_path / "broken.npy", "--step", 1)


def test_the_order_file_holds_every_step_and_names_the_data_set(tmp_path: Path) -> None:
    verl_run(tmp_path / "run", steps_of(42))
    out = tmp_path / "order.jsonl"
    assert run(tmp_path / "run", "--step", 10, "--write", out).exit_code == 0
    header, *steps = map(json.loads, out.read_text("utf-8").splitlines())
    assert header["kind"] == "row_order" and header["num_rows"] == 64
    assert len(header["data_set_hash"]) == 32
    assert [step["rows"] for step in steps] == [*steps_of(42)][:10]
    assert [step["step"] for step in steps] == list(range(1, 11))


def test_a_stale_index_beside_the_data_is_found_and_a_fresh_one_is_no_news(tmp_path: Path) -> None:
    mindspeed_rl_run(tmp_path)
    write_indexed(tmp_path)
    planted = mindspeed_rl_steps(23, 4, 42, 20)
    beside = tmp_path / "data_train_indexmap_80ns_42s_nb23_decoder_packed_shuffle_idx.npy"
    np.save(beside, np.tile(np.arange(23), 4))  # as the release itself leaves it
    assert rows(tmp_path, "--step", 3) == planted[2]
    assert "stale" not in run(tmp_path, "--step", 3).stdout
    stale = MindSpeedRLOld(23, 80, 42).epoch(0)
    np.save(beside, stale)
    places = mindspeed_rl_steps(len(stale), 4, 42, 1)[2]
    assert rows(tmp_path, "--step", 3) == [int(stale[place]) for place in places]
    assert "a stale index" in run(tmp_path, "--step", 3).stdout
    beside.rename(beside.with_name(beside.name.replace("42s", "43s")))  # of another run
    assert rows(tmp_path, "--step", 3) == planted[2]


def test_a_step_is_split_over_ranks_in_equal_parts(tmp_path: Path) -> None:
    verl_run(tmp_path, steps_of(42))
    planted = [*steps_of(42)[1]]
    shown = json.loads(run(tmp_path, "--step", 2, "--ranks", 4, "--json").stdout)
    assert shown["ranks"] == [planted[:2], planted[2:4], planted[4:6], planted[6:]]
    assert f"rank 3: {planted[6]} {planted[7]}" in run(tmp_path, "--step", 2, "--ranks", 4).stdout
    refuses("cannot be cut into 3 equal parts", tmp_path, "--step", 2, "--ranks", 3)


def test_a_restart_of_an_old_verl_replays_its_first_epoch(tmp_path: Path) -> None:
    planted = steps_of(42, torchdata=False)
    verl_run(tmp_path, planted, version="0.5.0")
    assert rows(tmp_path, "--step", 12) == planted[11]
    assert rows(tmp_path, "--step", 12, "--resumed-at", 11) == planted[3]


def test_what_is_lacking_is_said(tmp_path: Path) -> None:
    verl_run(tmp_path, steps_of(42), data=False, counted=None)
    refuses("neither holds its data set nor a log", tmp_path, "--step", 1)
    assert rows(tmp_path, "--step", 1, "--num-rows", 64) == steps_of(42)[0]
    refuses("more than the 7 rows", tmp_path, "--step", 1, "--num-rows", 7)
    refuses("does not exist", tmp_path / "none", "--step", 1)
    config = tmp_path / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("seed: 42", "seed: ${oc.env:SEED}"), "utf-8")
    refuses("data.seed", tmp_path, "--step", 1, "--num-rows", 64)
    config.write_text(text + "  x: 1\n", "utf-8")
    config.write_text(
        text.replace("data:\n", "data:\n  sampler:\n    class_path: my.py\n"), "utf-8"
    )
    refuses("a class of the run's own", tmp_path, "--step", 1, "--num-rows", 64)


def test_rows_that_a_filter_dropped_are_not_guessed(tmp_path: Path) -> None:
    verl_run(tmp_path, steps_of(42))
    config, log = tmp_path / "config.yaml", tmp_path / "run.log"
    config.write_text(config.read_text().replace("prompts: false", "prompts: true"), "utf-8")
    text = log.read_text()
    log.write_text(text.replace("len: 64", "len: 64\nfilter dataset len: 64"), "utf-8")
    assert rows(tmp_path, "--step", 1) == steps_of(42)[0]
    log.write_text(text.replace("len: 64", "len: 64\nfilter dataset len: 61"), "utf-8")
    refuses("kept 61 of 64 rows", tmp_path, "--step", 1)
    log.write_text(text.replace("dataset len: 64", ""), "utf-8")
    assert "no prompt is dropped by the length filter" in run(tmp_path, "--step", 1).stdout


def test_lengths_in_a_log_tell_the_seed_that_was_used(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(40, 400, 500)
    steps = [lengths[step] for step in mindspeed_rl_steps(500, 16, 7, 30)]
    found = find_order(settings(42), Rows(500), witness(tmp_path, steps, lengths))
    assert found is not None and found.changed is not None
    assert found.changed.en == "seed 7, not 42" and found.num_steps == len(steps)
    own = find_order(settings(7), Rows(500), witness(tmp_path, steps, lengths))
    assert own is not None and own.as_configured


def test_equal_lengths_tell_nothing(tmp_path: Path) -> None:
    lengths = np.full(500, 21)
    steps = [lengths[step] for step in mindspeed_rl_steps(500, 16, 7, 30)]
    # every order fits: the run's own is not contradicted, and no other one is claimed
    found = find_order(settings(42), Rows(500), witness(tmp_path, steps, lengths))
    assert found is not None and found.as_configured


def test_random_lengths_fit_no_order(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(40, 400, 500)
    steps = list(np.random.default_rng(1).permutation(lengths)[:480].reshape(30, 16))
    assert find_order(settings(42), Rows(500), witness(tmp_path, steps, lengths)) is None


def settings(seed: int) -> OrderSettings:
    return OrderSettings("mindspeed_rl", 16, seed, shuffle=True, total_steps=30)


def witness(folder: Path, steps: list[Int64], lengths: Int64) -> Witness:
    names = ("prompt_length/mean", "prompt_length/max", "prompt_length/min")
    lines = [
        json.dumps({"step": k, "data": dict(zip(names, map(float, values), strict=True))})
        for k, s in enumerate(steps, 1)
        for values in [(s.mean(), s.max(), s.min())]
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    log: MetricLog = RunData(discover([folder])).metrics
    found = length_witness(log, tuple(lengths.tolist()))
    assert found is not None
    return found


def test_a_balanced_batch_holds_the_same_rows_in_parts_of_equal_load() -> None:
    lengths = [100, 1, 1, 1, 50, 49, 2, 2]
    for by_workload in (True, False):
        order = balanced_order(lengths, 2, by_workload=by_workload)
        assert sorted(order) == list(range(8))
        parts = split_over_ranks(order, 2)
        loads = sorted(sum(lengths[row] for row in part) for part in parts)
        assert loads == [102, 104]
    with pytest.raises(ValueError, match="8 rows cannot be cut into 3"):
        balanced_order(lengths, 3)
