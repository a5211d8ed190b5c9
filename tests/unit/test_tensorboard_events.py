"""TensorBoard event files, written here with tensorboard's own writer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from align.core.errors import AlignError, DumpError, MissingPackageError
from align.core.metric import MetricLog
from dumps.readers.reader import Glimpse, no_progress
from dumps.readers.tensorboard_events import READER
from dumps.readers.verl_console import READER as VERL_CONSOLE

Value: Any = summary_pb2.Summary.Value  # generated code without types


def write(path: Path, *rows: tuple[int, list[Any]]) -> Path:
    events = [event_pb2.Event(file_version="brain.Event:2")]
    events += [event_pb2.Event(step=s, summary=summary_pb2.Summary(value=v)) for s, v in rows]
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
    return path


def scalar(tag: str, value: float) -> Any:
    return Value(tag=tag, simple_value=value)


def knows(path: Path) -> bool:
    return READER.sniff(Glimpse(path, path.stat().st_size))


def values(log: MetricLog, name: str) -> list[tuple[int, float]]:
    series = log.get(name)
    assert series is not None
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_the_events_of_a_run_agree_with_its_console_to_float32(corpus: Path) -> None:
    (events,) = (corpus / "metrics" / "tb_grpo_gpu_v08").iterdir()
    console = corpus / "verl_logs" / "grpo_gpu_v08_110steps_tqdm.txt"
    assert knows(events)
    tensorboard = READER.read(events, no_progress)
    printed = VERL_CONSOLE.read(console, no_progress)
    assert {s.spelling for s in printed.series} == {s.spelling for s in tensorboard.series}
    num_compared = 0
    for series in printed.series:
        other = tensorboard.get(series.spelling)
        assert other is not None
        steps, ours, theirs = np.intersect1d(series.steps, other.steps, return_indices=True)
        assert len(steps) == len(series), series.spelling
        left = series.values[ours].astype(np.float32)
        right = other.values[theirs].astype(np.float32)
        np.testing.assert_array_equal(left, right, err_msg=series.spelling)
        num_compared += len(steps)
    # 110 lines of 7 to 107 keys each, INDEX.md: 8,441 + 1,897 + 570 + 58 printed values.
    assert num_compared == 10_966


@pytest.mark.parametrize("folder", ["tb_gsm8k_sync", "tb_gsm8k_async"])
def test_real_event_files_are_known_and_read_to_their_end(corpus: Path, folder: str) -> None:
    (path,) = (corpus / "metrics" / folder).iterdir()
    assert knows(path)
    log = READER.read(path, no_progress)
    assert (log.framework, log.num_skipped, log.notes) == ("verl", 0, ())
    assert log.get("critic/score/mean") is not None


def test_a_header_alone_gives_no_series_and_says_so(corpus: Path) -> None:
    (path,) = (corpus / "metrics" / "tb_header_only").iterdir()
    assert path.stat().st_size == 88
    assert knows(path)
    log = READER.read(path, no_progress)
    assert (log.series, log.step_range) == ((), None)
    assert log.notes == ("the event file holds its header and no scalar",)


def test_a_value_has_the_resolution_of_float32(tmp_path: Path) -> None:
    path = write(tmp_path / "events", (1, [scalar("actor/lr", 1e-6), scalar("x", float("nan"))]))
    log = READER.read(path, no_progress)
    rate, nan = log.get("actor/lr"), log.get("x")
    assert rate is not None and nan is not None
    assert rate.values[0] == np.float32(1e-6)
    assert rate.resolution[0] == 2.0**-43  # 1e-6 lies between 2**-20 and 2**-19; 23 bits below
    assert np.isnan(nan.values[0]) and nan.resolution[0] == 0.0


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_resolution_is_numpys_spacing(
    tmp_path_factory: pytest.TempPathFactory, value: float
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "one", (1, [scalar("a", value)]))
    series = READER.read(path, no_progress).get("a")
    assert series is not None
    assert series.resolution[0] == np.spacing(np.abs(np.float32(value)))


def test_mindspeed_rl_tags_lose_their_prefix(tmp_path: Path) -> None:
    tags = [scalar("train/grpo/score/mean", 0.5), scalar("train/actor/pg_loss", 0.25)]
    log = READER.read(write(tmp_path / "events", (1, tags)), no_progress)
    assert log.framework == "mindspeed_rl"
    assert [(s.name, s.spelling) for s in log.series] == [
        ("critic/score/mean", "train/grpo/score/mean"),
        ("actor/total_loss_abs", "train/actor/pg_loss"),
    ]


def test_scalars_written_as_tensors_are_read_and_other_values_counted(tmp_path: Path) -> None:
    row = [
        Value(tag="single", tensor=make_tensor_proto(np.float32(0.1))),
        Value(tag="double", tensor=make_tensor_proto(np.float64(0.1))),
        Value(tag="text", tensor=make_tensor_proto("hello")),
        Value(tag="many", tensor=make_tensor_proto(np.zeros(3, np.float32))),
    ]
    log = READER.read(write(tmp_path / "events", (7, row)), no_progress)
    assert values(log, "single") == [(7, float(np.float32(0.1)))]
    assert values(log, "double") == [(7, 0.1)]
    assert [s.spelling for s in log.series] == ["single", "double"]
    assert log.notes == ("2 values are no scalars (text, images, histograms)",)


def test_a_step_written_twice_keeps_the_later_value(tmp_path: Path) -> None:
    rows = [
        (step, [scalar("critic/score/mean", value)]) for step, value in [(1, 0.5), (2, 1), (1, 2)]
    ]
    log = READER.read(write(tmp_path / "events", *rows), no_progress)
    assert values(log, "critic/score/mean") == [(1, 2.0), (2, 1.0)]
    assert log.num_overwritten == 1


def test_a_cut_file_gives_what_it_has_and_says_where_it_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "events", *[(step, [scalar("a", step)]) for step in range(10)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    log = READER.read(path, no_progress)
    assert log.step_range == (0, 8)
    assert "the last" in log.notes[0]


def test_a_damaged_header_is_refused_with_a_fix(tmp_path: Path) -> None:
    path = write(tmp_path / "events", (1, [scalar("a", 1)]))
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(DumpError) as error:
        READER.read(path, no_progress)
    assert error.value.fix


def test_without_tensorboard_the_file_is_known_and_the_extra_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "events", (1, [scalar("a", 1)]))
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    assert knows(path)
    with pytest.raises(MissingPackageError) as error:
        READER.read(path, no_progress)
    assert "npu-align[tensorboard]" in error.value.fix
    assert "pip install '.[tensorboard]'" in error.value.fix


@given(st.integers(0, 400), st.integers(0, 400), st.binary(max_size=8))
def test_damaged_files_raise_nothing_but_our_own(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, damage: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "events"
    data = write(path, *[(step, [scalar("a", step)]) for step in range(9)]).read_bytes()
    path.write_bytes((data[:at] + damage + data[at + len(damage) :])[: len(data) - cut])
    knows(path)
    try:
        READER.read(path, no_progress)
    except AlignError as error:
        assert error.fix
