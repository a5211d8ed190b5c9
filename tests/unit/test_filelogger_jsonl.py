"""verl's FileLogger in both dialects, and flat rows."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import AlignError, DumpError
from align.core.metric import MetricLog
from dumps.readers.filelogger_jsonl import READER
from dumps.readers.reader import Glimpse, no_progress

COMPACT = '{"step":1,"data":{"actor/lr":1e-6,"actor/grad_norm":null,"timing_s/gen":2}}\n'
SPACED = '{"step": 2, "data": {"actor/lr": 2e-06, "actor/grad_norm": NaN, "x": -Infinity}}\n'
QUOTED = '{"step": 3, "data": {"actor/grad_norm": "NaN", "x": "Infinity", "note": "abc"}}\n'


def read_text(folder: Path, text: str | bytes) -> MetricLog:
    path = folder / " "
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    log = READER.read(path, no_progress)
    assert isinstance(log, MetricLog)
    return log


def knows(path: Path) -> bool:
    return READER.sniff(Glimpse(path, path.stat().st_size))


def values(log: MetricLog, name: str) -> list[tuple[int, float]]:
    series = log.get(name)
    assert series is not None
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


@pytest.mark.parametrize(
    "name, num_lines, num_rows, last_step, num_keys, num_skipped",
    [
        ("filelogger_grpo_fsdp.jsonl", 100, 100, 100, 75, 0),
        ("filelogger_sft_fsdp1.jsonl", 78, 77, 76, 7, 1),  # a stray "}" line
        ("filelogger_sft_fsdp2.jsonl", 78, 78, 77, 7, 0),
    ],
)
def test_real_files_give_their_counts(
    corpus: Path,
    name: str,
    num_lines: int,
    num_rows: int,
    last_step: int,
    num_keys: int,
    num_skipped: int,
) -> None:
    path = corpus / "metrics" / name
    assert knows(path)
    log = READER.read(path, no_progress)
    assert (log.num_lines, log.num_metric_lines, log.num_skipped) == (
        num_lines,
        num_rows,
        num_skipped,
    )
    assert log.step_range == (1, last_step)
    assert len(log.series) == num_keys
    assert (log.framework, log.num_overwritten) == ("verl", 0)


def test_a_repeated_step_merges_training_and_validation(corpus: Path) -> None:
    log = READER.read(corpus / "metrics" / "filelogger_sft_fsdp1.jsonl", no_progress)
    assert [step for step, _ in values(log, "val/loss")] == [58]  # as grep finds it
    assert len(values(log, "train/loss")) == 76
    assert values(log, "train/loss")[0] == (1, 1.371598482131958)


def test_nan_and_infinities_stay_what_they_are(tmp_path: Path) -> None:
    log = read_text(tmp_path, COMPACT + SPACED + QUOTED)
    norms = log.get("actor/grad_norm")
    assert norms is not None
    assert norms.steps.tolist() == [1, 2, 3]
    assert np.isnan(norms.values).all()
    assert values(log, "x") == [(2, -np.inf), (3, np.inf)]
    assert values(log, "actor/lr") == [(1, 1e-6), (2, 2e-6)]
    assert [note for note in log.notes if "null" in note]


def test_text_among_the_values_is_counted_not_guessed(tmp_path: Path) -> None:
    log = read_text(tmp_path, QUOTED)
    assert log.get("note") is None
    assert [(s.line, s.why) for s in log.skipped] == [(1, "note is not a number")]


def test_lines_and_resolution_are_kept(tmp_path: Path) -> None:
    series = read_text(tmp_path, "\n" + COMPACT + SPACED).get("actor/lr")
    assert series is not None
    assert series.lines.tolist() == [2, 3]
    assert series.resolution.tolist() == [0.0, 0.0]


def test_a_resumed_run_overwrites_the_steps_it_repeats(tmp_path: Path) -> None:
    rows = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35)]
    text = "".join(f'{{"step":{s},"data":{{"critic/score/mean":{v}}}}}\n' for s, v in rows)
    log = read_text(tmp_path, text)
    assert values(log, "critic/score/mean") == [(1, 0.1), (2, 0.25), (3, 0.35)]
    assert log.num_overwritten == 2


def test_a_row_cut_by_a_crash_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    log = read_text(tmp_path, COMPACT + '{"step":2,"data":{"actor/l' + SPACED)
    assert values(log, "actor/lr") == [(1, 1e-6), (2, 2e-6)]


def test_a_flat_row_is_read_and_a_rollout_row_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "flat"
    path.write_text('{"step": 3, "actor/grad_norm": NaN, "critic/score/mean": 0.5}\n')
    assert knows(path)
    assert values(READER.read(path, no_progress), "critic/score/mean") == [(3, 0.5)]
    for row in (
        '{"input": "a", "output": "b", "score": 1.0, "step": 1}',
        '{"step": 1, "score": 1.0}',
        '{"iteration": 1}',
        "[1, 2]",
    ):
        path.write_text(row + "\n")
        assert not knows(path)


def test_an_empty_file_has_no_step_and_says_so(tmp_path: Path) -> None:
    log = read_text(tmp_path, "")
    assert (log.step_range, log.notes) == (None, ("the file is empty",))


def test_a_file_without_a_row_is_refused_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(DumpError) as error:
        read_text(tmp_path, "hello\nworld\n")
    assert "2 lines" in error.value.problem
    assert error.value.fix


def test_absurd_numbers_are_skipped(tmp_path: Path) -> None:
    huge = "9" * 400
    text = f'{{"step":{huge},"data":{{"a":1}}}}\n{{"step":1,"data":{{"a":{huge},"b":2}}}}\n'
    log = read_text(tmp_path, text)
    assert values(log, "b") == [(1, 2.0)]
    assert log.get("a") is None


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_our_own(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    _survives(tmp_path_factory.getbasetemp() / "fuzz.jsonl", data)


@given(st.randoms(use_true_random=False), st.integers(0, 3000))
def test_cut_and_shuffled_rows_raise_nothing_but_our_own(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random, cut: int
) -> None:
    lines = [COMPACT, SPACED, QUOTED, "}\n", '{"step":1,"data":[1]}\n', '{"step":{}}\n'] * 5
    rng.shuffle(lines)
    _survives(tmp_path_factory.getbasetemp() / "cut.jsonl", "".join(lines).encode()[:cut])


def _survives(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    knows(path)
    try:
        READER.read(path, no_progress)
    except AlignError as error:
        assert error.fix
