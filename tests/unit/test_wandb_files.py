"""wandb's datastore and summary; datastores are framed here after the LevelDB log format."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

from align.core.errors import AlignError, DumpError, MissingPackageError
from align.core.metric import MetricLog
from dumps.readers.reader import Glimpse, Reader, no_progress
from dumps.readers.wandb_files import DATASTORE, SUMMARY

BLOCK = 32 * 1024


def history(step: int, row: Mapping[str, object]) -> bytes:
    record = Record()
    record.history.step.num = step
    for key, value in row.items():
        item = record.history.item.add()
        item.key = key
        item.value_json = json.dumps(value)
    return bytes(record.SerializeToString())


def framed(records: list[bytes]) -> bytes:
    """Write a log as its specification says: a record never leaves fewer than 7 bytes a block."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        for kind, piece in _pieces(record, len(out)):
            if len(out) % BLOCK > BLOCK - 7:
                out += bytes(BLOCK - len(out) % BLOCK)
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
    return bytes(out)


def _pieces(record: bytes, position: int) -> Iterator[tuple[int, bytes]]:
    start, first = 0, True
    while True:
        room = BLOCK - position % BLOCK
        if room < 7:
            position += room
            room = BLOCK
        piece = record[start : start + room - 7]
        last = start + len(piece) == len(record)
        yield (
            {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[(first, last)],
            piece,
        )
        start, position, first = start + len(piece), position + 7 + len(piece), False
        if last:
            return


def read(path: Path, data: bytes, reader: Reader = DATASTORE) -> MetricLog:
    path.write_bytes(data)
    assert reader.sniff(Glimpse(path, len(data)))
    log = reader.read(path, no_progress)
    assert isinstance(log, MetricLog)
    return log


def values(log: MetricLog, name: str) -> list[tuple[int, float]]:
    series = log.get(name)
    assert series is not None
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_the_real_datastore_is_known_and_says_that_it_logs_no_metric(corpus: Path) -> None:
    path = corpus / "metrics" / "wandb_rl" / "run-gezzid48.wandb"
    assert DATASTORE.sniff(Glimpse(path, path.stat().st_size))
    log = DATASTORE.read(path, no_progress)
    assert (log.series, log.num_skipped) == ((), 0)
    # The messages number themselves up to 133, and the last one says that the run exited.
    assert log.notes == ("none of its 133 records logs a metric: the run ended before that",)


def test_a_history_over_many_blocks_is_read_whole(tmp_path: Path) -> None:
    records = [history(s, {"critic/score/mean": s / 3, "timing_s/gen": 1.5}) for s in range(2000)]
    data = framed(records)
    assert len(data) > 3 * BLOCK
    log = read(tmp_path / "run", data)
    assert values(log, "critic/score/mean") == [(s, s / 3) for s in range(2000)]
    assert (log.framework, log.num_metric_lines, log.num_skipped) == ("verl", 2000, 0)


def test_a_record_larger_than_a_block_is_joined(tmp_path: Path) -> None:
    row: dict[str, object] = {f"val-aux/{i:05d}/reward/mean@1": float(i) for i in range(3000)}
    log = read(tmp_path / "run", framed([history(1, row), history(2, {"a": 1})]))
    assert len(log.series) == 3001


def test_an_unclosed_datastore_is_read_up_to_its_cut(tmp_path: Path) -> None:
    data = framed([history(s, {"a": s, "text": "x" * 500}) for s in range(3000)])
    assert len(data) > 36 * BLOCK
    log = read(tmp_path / "run", data[: 36 * BLOCK])
    whole = values(log, "a")
    assert whole == [(s, float(s)) for s in range(len(whole))]
    assert 2000 < len(whole) < 3000
    assert [note for note in log.notes if "was not closed" in note]


def test_nan_infinity_and_nested_keys_stay_what_they_are(tmp_path: Path) -> None:
    nested = Record()
    nested.history.step.num = 2
    item = nested.history.item.add()
    item.nested_key.extend(["val", "loss"])
    item.value_json = "0.5"
    first = history(1, {"a": float("nan"), "b": float("-inf"), "text": "x", "_runtime": 5})
    log = read(tmp_path / "run", framed([first, nested.SerializeToString()]))
    assert [s.spelling for s in log.series] == ["a", "b", "val.loss"]
    assert np.isnan(log.series[0].values[0])
    assert values(log, "b") == [(1, -np.inf)]


def test_the_trainers_step_counts_before_wandbs_own(tmp_path: Path) -> None:
    rows = [history(0, {"train/loss": 2.5, "train/global_step": 10, "_step": 0})]
    assert values(read(tmp_path / "run", framed(rows)), "train/loss") == [(10, 2.5)]


def test_a_damaged_record_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    data = bytearray(framed([history(s, {"a": s}) for s in range(10)]))
    data[60] ^= 0xFF
    log = read(tmp_path / "run", bytes(data))
    assert log.num_skipped == 1
    assert len(values(log, "a")) == 9


def test_a_datastore_without_a_record_is_refused_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(DumpError) as error:
        read(tmp_path / "run", framed([]))
    assert error.value.fix


def test_without_wandb_the_file_is_known_and_the_extra_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    with pytest.raises(MissingPackageError) as error:
        read(tmp_path / "run", framed([history(1, {"a": 1})]))
    assert "npu-align[wandb]" in error.value.fix and "'.[wandb]'" in error.value.fix


def test_the_real_summary_gives_its_last_step(corpus: Path) -> None:
    path = corpus / "metrics" / "wandb_sft" / "wandb-summary.json"
    assert SUMMARY.sniff(Glimpse(path, path.stat().st_size))
    log = SUMMARY.read(path, no_progress)
    assert values(log, "val/loss") == [(4500, 0.49049830436706543)]
    assert values(log, "train/loss") == [(4500, 0.4900846779346466)]
    assert values(log, "train/lr(1e-3)") == [(4500, 0.0)]
    assert len(log.series) == 3


def test_other_json_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for text in ('{"_step": 1}', '{"step": 1, "_runtime": 2}', '["_step", "_runtime"]', ""):
        path.write_text(text)
        assert not SUMMARY.sniff(Glimpse(path, len(text)))


@pytest.mark.parametrize(
    "text", ['{"_step": "x", "_runtime": 1}', '{"_step": 1, "_runtime": ', "[]"]
)
def test_a_broken_summary_is_refused_with_a_fix(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(DumpError) as error:
        SUMMARY.read(path, no_progress)
    assert error.value.fix


@given(st.integers(0, 700), st.integers(0, 700), st.binary(max_size=12))
def test_damaged_datastores_raise_nothing_but_our_own(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, damage: bytes
) -> None:
    data = framed([history(s, {"a": s, "b": "text"}) for s in range(12)])
    path = tmp_path_factory.getbasetemp() / "run.wandb"
    path.write_bytes((data[:at] + damage + data[at + len(damage) :])[: len(data) - cut])
    _survives(DATASTORE, path)


@given(st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)))
def test_arbitrary_summaries_raise_nothing_but_our_own(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "summary"
    path.write_bytes(b'{"_step": 1, "_runtime": 1' + data)
    _survives(SUMMARY, path)


def _survives(reader: Reader, path: Path) -> None:
    reader.sniff(Glimpse(path, path.stat().st_size))
    try:
        reader.read(path, no_progress)
    except AlignError as error:
        assert error.fix
