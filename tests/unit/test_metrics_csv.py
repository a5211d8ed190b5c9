"""Metrics exported as CSV."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import AlignError, DumpError
from align.core.metric import MetricLog
from dumps.readers.metrics_csv import READER
from dumps.readers.reader import Glimpse, no_progress


def write(folder: Path, text: str) -> Path:
    path = folder / "导出"
    path.write_text(text, encoding="utf-8")
    return path


def knows(path: Path) -> bool:
    return READER.sniff(Glimpse(path, path.stat().st_size))


def values(log: MetricLog, name: str) -> list[tuple[int, float]]:
    series = log.get(name)
    assert series is not None
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


@pytest.mark.parametrize("name", ["csv_grpo_dp2.csv", "csv_grpo_ulysses_sp2dp2.csv"])
def test_real_exports_give_their_counts(corpus: Path, name: str) -> None:
    path = corpus / "metrics" / name
    assert knows(path)
    log = READER.read(path, no_progress)
    assert log.num_metric_lines == 116  # 117 lines with the header
    assert log.step_range == (1, 116)
    assert (len(log.series), log.framework, log.num_skipped) == (23, "verl", 0)


def test_a_blank_is_an_absent_value_and_six_decimals_are_the_resolution(corpus: Path) -> None:
    log = READER.read(corpus / "metrics" / "csv_grpo_dp2.csv", no_progress)
    testing, loss = log.get("timing_s/testing"), log.get("critic/vf_loss")
    assert testing is not None and loss is not None
    assert len(testing) < 116
    assert values(log, "critic/vf_loss")[0] == (1, 0.341855)
    assert set(loss.resolution.tolist()) == {1e-6}
    assert loss.lines[0] == 2


def test_numbers_of_many_lengths_are_complete(tmp_path: Path) -> None:
    path = write(tmp_path, "step,actor/lr,critic/score/mean\n1,1e-06,0.5\n2,2e-06,0.12345678\n")
    series = READER.read(path, no_progress).get("critic/score/mean")
    assert series is not None
    assert series.resolution.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "header", ["step", "Step", "_step", "training/global_step", "global_step", "iteration"]
)
def test_the_step_column_is_found_wherever_it_is(tmp_path: Path, header: str) -> None:
    path = write(tmp_path, f"critic/score/mean,{header}\n0.5,3\n0.75,4.0\n")
    assert knows(path)
    log = READER.read(path, no_progress)
    assert values(log, "critic/score/mean") == [(3, 0.5), (4, 0.75)]


def test_the_trainers_step_counts_before_wandbs_own(tmp_path: Path) -> None:
    path = write(tmp_path, "_step,train/global_step,train/loss\n0,10,2.5\n1,20,1.5\n7,,0.5\n")
    log = READER.read(path, no_progress)
    assert values(log, "train/loss") == [(7, 0.5), (10, 2.5), (20, 1.5)]


def test_a_wandb_panel_is_read_without_its_ranges(tmp_path: Path) -> None:
    name = "npu-run - critic/score/mean"
    path = write(tmp_path, f'"Step","{name}","{name}__MIN","{name}__MAX"\n"1","0.5","0.5","0.5"\n')
    log = READER.read(path, no_progress)
    assert [s.spelling for s in log.series] == ["critic/score/mean"]
    assert [note for note in log.notes if "__MIN" in note]


def test_tabs_semicolons_a_bom_and_nan_are_read(tmp_path: Path) -> None:
    for delimiter in "\t;":
        text = "step,actor/grad_norm\n1,nan\n2,inf\n".replace(",", delimiter)
        log = READER.read(write(tmp_path, "\ufeff" + text), no_progress)
        assert str(values(log, "actor/grad_norm")) == "[(1, nan), (2, inf)]"


def test_other_tables_are_left_alone(tmp_path: Path, corpus: Path) -> None:
    for text in (
        "Wall time,Step,Value\n1.0,1,0.5\n",  # TensorBoard's download: the tag is not in it
        "name,value\na,1\n",
        "step,score\nfirst,0.5\n",
        "step\n1\n",
        "",
    ):
        assert not knows(write(tmp_path, text))
    assert not knows(corpus / "msprobe" / "compare_result_old.csv")


def test_rows_that_hold_no_step_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "step,a,b\n1,0.5,x\nhello\n\n2,0.75\n")
    log = READER.read(path, no_progress)
    assert values(log, "a") == [(1, 0.5), (2, 0.75)]
    assert [(s.line, s.why) for s in log.skipped] == [
        (2, "b is not a number: x"),
        (3, "no whole number as its step"),
    ]


@pytest.mark.parametrize("text", ["name,value\na,1\n", "step,loss\n", ""])
def test_a_table_without_steps_is_refused_with_a_fix(tmp_path: Path, text: str) -> None:
    with pytest.raises(DumpError) as error:
        READER.read(write(tmp_path, text), no_progress)
    assert error.value.fix


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda b: b"step,a\n1," + b)))
def test_arbitrary_bytes_raise_nothing_but_our_own(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(data)
    knows(path)
    try:
        READER.read(path, no_progress)
    except AlignError as error:
        assert error.fix
