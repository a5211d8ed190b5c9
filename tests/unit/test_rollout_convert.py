"""Rollout dumps converted into one another: what survives, and what is said to be lost."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from align.cli.rollout import command
from align.core.errors import AlignError, DumpError
from align.core.rollout_record import RolloutRecord
from align.rollout.rung import compare
from dumps.readers.inert_pickle import Inert, read_pickle
from dumps.readers.rollout_records import read_records
from dumps.readers.rollout_store import read_store
from dumps.readers.verl_skip_rollout import read_saved
from dumps.store.discover import discover
from dumps.store.rollout_convert import convert
from dumps.store.rollout_writers import FORMATS, write_records
from dumps.store.run_data import RunData

STEP = "GBS8_N4_in64_out16/1"


@pytest.fixture
def saved(reference_runs: Path) -> dict[str, Path]:
    """verl 0.9.1's own saved rollouts."""
    return {
        "tq_batch": reference_runs / f"skip_rollout_tq/tiny_recon/{STEP}/0/tq_batch.pt",
        "gen_batch": reference_runs / f"skip_rollout_v0/tiny_recon/{STEP}/gen_batch.dp",
    }


ROW = RolloutRecord(
    prompt="user\n1 + 1?\nassistant\n",
    response="2",
    prompt_ids=(1, 291, 5),
    response_ids=(20, 2),
    log_probs=(-0.125, -1.5),
    score=0.1,
    step=3,
    dataset_index=7,
    sample_index=0,
    finish_reason="stop",
    ground_truth="2",
    uid="u",
    extras={"task": "add", "score/format": None, "nested": {"a": [1, 2.5, "x"]}},
)


def written(folder: Path, to: str, rows: list[RolloutRecord]) -> list[Path]:
    return write_records(rows, folder, FORMATS[to]).files


def back(files: Sequence[Path]) -> list[RolloutRecord]:
    both = (read_store(file) if file.suffix == ".parquet" else read_records(file) for file in files)
    rows = [row for rows in both for row in rows]
    assert all(isinstance(row, RolloutRecord) for row in rows)
    return [row for row in rows if isinstance(row, RolloutRecord)]


@pytest.mark.parametrize("to", ["store", "verl", "mindspeed_rl"])
def test_a_row_with_every_field_comes_back_as_it_was(tmp_path: Path, to: str) -> None:
    assert back(written(tmp_path, to, [ROW, replace(ROW, step=4)])) == [ROW, replace(ROW, step=4)]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ids = st.lists(st.integers(0, 200_000), max_size=5).map(tuple)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.builds(
            RolloutRecord,
            prompt=st.none() | texts,
            response=texts,
            prompt_ids=st.none() | ids,
            response_ids=st.none() | ids,
            log_probs=st.none() | st.lists(st.floats(-50, 0), max_size=4).map(tuple),
            score=st.none() | st.floats(-1e6, 1e6),
            step=st.none() | st.integers(0, 3),
            dataset_index=st.none() | st.integers(0, 10**6),
            sample_index=st.none() | st.integers(0, 64),
            finish_reason=st.none() | st.sampled_from(["stop", "length"]),
            ground_truth=st.none() | texts,
            uid=st.none() | texts,
        ),
        min_size=1,
        max_size=8,
    ),
    to=st.sampled_from(["store", "verl"]),
)
def test_any_rows_come_back(tmp_path_factory: pytest.TempPathFactory, rows, to: str) -> None:
    files = written(tmp_path_factory.mktemp("rows"), to, rows)
    assert back(files) == rows


def test_verls_dump_goes_through_the_store_and_back_without_a_change(
    reference_runs: Path, tmp_path: Path
) -> None:
    for run in ("v091_v0_fsdp2", "v091_v1_fsdp2"):
        source = reference_runs / run / "rollout"
        convert(source, tmp_path / run / "store", "store")
        convert(tmp_path / run / "store", tmp_path / run / "verl", "verl")
        for file in source.glob("*.jsonl"):
            ours = (tmp_path / run / "verl" / "rollout" / file.name).read_text("utf-8")
            theirs = file.read_text("utf-8").rstrip("\n").split("\n")
            assert [json.loads(line) for line in ours.splitlines()] == [*map(json.loads, theirs)]


def test_a_converted_run_is_compared_like_its_source(reference_runs: Path, tmp_path: Path) -> None:
    source = reference_runs / "v091_v0_fsdp2" / "rollout"
    convert(source, tmp_path, "store")
    runs = [RunData(discover([path])) for path in (source, tmp_path)]
    result = compare(runs[0], runs[1])
    assert result.findings == ()
    assert "96 are the same word by word" in result.summary.en or "same" in result.summary.en
    assert [row[2] for row in result.tables[0].rows] == [1.0] * len(result.tables[0].rows)
    first = runs[1].rollouts.texts([0])[0]
    assert first.response == runs[0].rollouts.texts([0])[0].response


def test_saved_rollouts_decode_to_what_verls_reward_function_saw(
    saved: dict[str, Path], reference_runs: Path
) -> None:
    pytest.importorskip("tokenizers", reason="decoding needs tokenizers: install [torch]")
    from dumps.store.rollout_sources import decoder

    decode = decoder(reference_runs / "tiny_model_tokenizer_data" / "model")
    for path in saved.values():
        rows = read_saved(path, decode).records
        assert len(rows) == 32 and {row.step for row in rows} == {1}
        for row in rows:
            saw = (
                row.extras.get("reward_extra_info")
                or row.extras["extra_fields"]["reward_extra_info"]
            )
            assert row.response is not None and row.response[:16] == saw["pred"]
            assert row.score == pytest.approx(saw["score"], rel=2**-23)
            assert row.prompt == f"user\n{row.extras['raw_prompt'][0]['content']}\nassistant\n"
            assert len(row.log_probs or ()) == len(row.response_ids or ())


def test_reading_pickles_needs_no_package_and_runs_nothing(
    saved: dict[str, Path], tmp_path: Path
) -> None:
    assert len(read_saved(saved["tq_batch"]).records) == 32

    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    path = tmp_path / "tq_batch.pt"
    path.write_bytes(pickle.dumps({"tensordict": Harmful()}))
    value = read_pickle(path)
    assert isinstance(value["tensordict"], Inert) and value["tensordict"].path.endswith("mkdir")
    assert not (tmp_path / "made").exists()
    with pytest.raises(DumpError, match="something else"):
        read_saved(path)


@pytest.mark.parametrize("name", ["tq_batch", "gen_batch"])
def test_a_damaged_pickle_is_named_wherever_it_is_cut(
    saved: dict[str, Path], tmp_path: Path, name: str
) -> None:
    data = saved[name].read_bytes()
    path = tmp_path / saved[name].name
    for size in (0, 1, 100, 5000, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(DumpError, match=path.name):
            read_saved(path)


def test_any_bytes_are_read_or_named(saved: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "gen_batch.dp"
    data = bytearray(saved["gen_batch"].read_bytes())

    @settings(max_examples=150, deadline=None)
    @given(at=st.integers(0, len(data) - 1), value=st.integers(0, 255))
    def flip(at: int, value: int) -> None:
        changed = bytearray(data)
        changed[at] = value
        path.write_bytes(changed)
        with contextlib.suppress(AlignError):
            read_saved(path)

    flip()


def test_what_is_lost_is_said(saved: dict[str, Path], tmp_path: Path) -> None:
    done = convert(saved["gen_batch"], tmp_path, "store")
    assert done.num_rows == 32 and done.lost == {}
    assert set(done.absent) == {
        "prompt",
        "response",
        "dataset_index",
        "sample_index",
        "finish_reason",
        "ground_truth",
        "uid",
    }
    with pytest.raises(DumpError, match="--tokenizer"):
        next(iter(RunData(discover([tmp_path]))._read(discover([tmp_path]).artifacts[0])))


def test_half_characters_are_kept_in_lines_and_counted_in_the_store(tmp_path: Path) -> None:
    row = replace(ROW, response="cut \ud83d")
    assert back(written(tmp_path / "lines", "verl", [row])) == [row]
    done = write_records([row], tmp_path / "store", FORMATS["store"])
    assert done.losses == {"lone surrogates, written as U+FFFD": 1}
    assert [r.response for r in back(done.files)] == ["cut \ufffd"]


def test_bad_lines_are_counted_and_the_rest_is_converted(tmp_path: Path) -> None:
    good = {"input": "p", "output": "r", "score": 1, "step": 1}
    lines = [json.dumps(good), '{"input": "p", "outp', json.dumps({**good, "score": "bad"})]
    (tmp_path / "1.jsonl").write_text("\n".join(lines))
    done = convert(tmp_path / "1.jsonl", tmp_path / "out", "store")
    assert (done.num_rows, done.num_skipped) == (2, 1)
    assert "1.jsonl:2" in done.problems[0]
    first, second = back(done.files)
    assert first.score == 1.0
    assert second.score is None and second.extras == {"score": "bad"}


def test_a_truncated_file_of_the_store_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    rows = [replace(ROW, step=step, response=f"r{step}") for step in (1, 2)]
    first, _ = written(tmp_path, "store", rows)
    first.write_bytes(first.read_bytes()[:-20])
    data = RunData(discover([tmp_path]))
    assert len(data.rollouts) == 1
    assert [first.name in str(problem) for problem in data.problems].count(True) == 1
    done = convert(tmp_path, tmp_path / "out", "verl")
    assert done.num_rows == 1 and "no whole parquet file" in done.problems[0]


def test_the_command_says_what_is_absent_and_lost(saved: dict[str, Path], tmp_path: Path) -> None:
    run = CliRunner().invoke(
        command, ["convert", str(saved["tq_batch"]), "-o", str(tmp_path), "--json"]
    )
    assert run.exit_code == 0
    document = json.loads(run.output)
    assert document["rows"] == 32 and document["absent"] == ["prompt", "response", "finish_reason"]
    assert [Path(file).name for file in document["files"]] == ["step=000001.parquet"]
    shown = CliRunner().invoke(
        command,
        ["convert", str(tmp_path), "-o", str(tmp_path / "zh"), "--to", "verl", "--lang", "zh"],
    )
    assert "写出 32 行" in shown.output and "来源中没有" in shown.output
