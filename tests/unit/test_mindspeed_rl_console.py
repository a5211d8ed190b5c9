"""Console logs of MindSpeed-RL, both eras."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import DumpError
from align.core.metric import MetricLog
from dumps.readers import verl_console
from dumps.readers.mindspeed_rl_console import READER
from dumps.readers.reader import Glimpse, no_progress

# Current code: "%(asctime)s - %(levelname)s - ", four decimals, learning rates as %e.
NEW = (
    "2026-03-01 10:00:{0:02d},123 - INFO - [2026-03-01 10:00:{0:02d}] iteration: {0} / 500 | "
    "timing/all : 52.0000 | actor/grad_norm : 0.1250 | actor/lr : 1.000000e-06 | "
    "grpo/score/mean : 0.3750 | e2e_tps : 0.1791 | \n"
)
OLD = (
    "\x1b[36m(main_task pid=2)\x1b[0m INFO:root:[2025-03-21 14:30:{0:02d}] iteration: {0} / 10 | "
    "timing/gen : 25.2736274749040604 | grpo/rewards/mean : -0.5000000000000000 | "
    "actor/pg_loss : 0.0000062115568215 | \n"
)


def read_text(folder: Path, text: str) -> MetricLog:
    path = folder / " "
    path.write_text(text)
    return READER.read(path, no_progress)


def knows(path: Path) -> bool:
    return READER.sniff(Glimpse(path, path.stat().st_size))


def series_of(log: MetricLog, key: str) -> tuple[list[int], list[float], list[float]]:
    series = log.get(key)
    assert series is not None
    return series.steps.tolist(), series.values.tolist(), series.resolution.tolist()


def test_the_real_log_agrees_with_a_plain_search(corpus: Path) -> None:
    path = corpus / "mindspeed_rl" / "log_grpo_qwen25_7b_3iterations.txt"
    text = path.read_text(encoding="utf-8", errors="replace")
    rows = [row for row in text.split("\n") if "iteration:" in row]
    log = READER.read(path, no_progress)
    assert knows(path) and log.framework == "mindspeed_rl"
    assert log.num_metric_lines == len(rows) and log.num_skipped == 0
    for row in rows:
        step = int(re.findall(r"iteration: (\d+)", row)[0])
        pairs = re.findall(r"(\S+) : (-?[\d.]+)", row)
        assert log.max_keys_per_line == len(pairs) == 28
        for key, printed in pairs:
            steps, values, resolution = series_of(log, key)
            assert values[steps.index(step)] == float(printed)
            assert set(resolution) == {1e-16}


def test_the_newer_form_has_four_decimals_and_learning_rates_an_exponent(tmp_path: Path) -> None:
    log = read_text(tmp_path, "".join(map(NEW.format, range(1, 4))))
    assert series_of(log, "timing/all") == ([1, 2, 3], [52.0] * 3, [1e-4] * 3)
    assert series_of(log, "actor/lr") == ([1, 2, 3], [1e-6] * 3, [1e-12] * 3)
    assert (log.min_keys_per_line, log.max_keys_per_line) == (5, 5)


def test_spellings_get_one_name_and_stay_visible(tmp_path: Path) -> None:
    log = read_text(tmp_path, NEW.format(1))
    series = log.get("critic/score/mean")
    assert series is not None and series.spelling == "grpo/score/mean"


def test_the_older_form_behind_its_prefixes(tmp_path: Path) -> None:
    log = read_text(tmp_path, "".join(map(OLD.format, range(1, 4))))
    assert series_of(log, "grpo/rewards/mean") == ([1, 2, 3], [-0.5] * 3, [1e-16] * 3)
    assert series_of(log, "actor/pg_loss")[1] == [6.2115568215e-06] * 3


def test_nan_is_kept_and_glued_text_left_out(tmp_path: Path) -> None:
    line = "iteration: 7 / 9 | a/x : nan | b : 1.5000 | c : 2.2500(WorkerDict pid=3) d : 3.0 | \n"
    log = read_text(tmp_path, "  0%|  | 0/9 [00:00<?, ?it/s]" + line)
    assert str(series_of(log, "a/x")[1]) == "[nan]"
    assert series_of(log, "c") == ([7], [2.25], [1e-4])
    assert log.get("d") is None


def test_a_repeated_iteration_keeps_the_later_line(tmp_path: Path) -> None:
    log = read_text(tmp_path, OLD.format(1) + OLD.format(2) + OLD.format(2).replace("-0.5", "0.25"))
    assert series_of(log, "grpo/rewards/mean")[1] == [-0.5, 0.25]
    assert log.num_overwritten == 3 and log.num_metric_lines == 3


def test_each_framework_knows_only_its_own_logs(corpus: Path, tmp_path: Path) -> None:
    for path in (corpus / "verl_logs").iterdir():
        assert not knows(path), path
    path = tmp_path / "log"
    path.write_text(NEW.format(1))
    assert knows(path)
    assert not verl_console.READER.sniff(Glimpse(path, path.stat().st_size))


def test_a_crash_before_the_first_iteration_is_known_by_its_paths(tmp_path: Path) -> None:
    text = (
        "\x1b[36m(IntegratedWorker pid=4)\x1b[0m Traceback (most recent call last):\n"
        '\x1b[36m(IntegratedWorker pid=4)\x1b[0m   File "/x/MindSpeed-RL/mindspeed_rl/a.py"\n'
        "\x1b[36m(IntegratedWorker pid=4)\x1b[0m RuntimeError: HCCL error, EI0006: timeout\n"
    )
    log = read_text(tmp_path, text)
    assert knows(tmp_path / " ")
    assert log.framework == "mindspeed_rl" and log.series == ()
    assert log.last_error is not None and log.last_error.line == 3


@pytest.mark.parametrize(
    "text",
    [
        "iteration: 3 of the plan | nothing : here\n",
        '{"note": "iteration: 1 / 3 | a : 1.0 |"}\n',
        "megatron_training:\n  train_iters: 500\n",
    ],
)
def test_other_text_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert not knows(path)


@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.integers(0, 9).map(lambda step: OLD.format(step).encode()),
            st.sampled_from([b"iteration: 1 / 2 | ", b" : ", b" | ", b"a : 1e", b"\r", b"\n"]),
        ),
        max_size=10,
    )
)
def test_any_mixture_of_bytes_gives_a_log_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_bytes(b"".join(pieces))
    knows(path)
    try:
        log = READER.read(path, no_progress)
    except DumpError:
        return
    for series in log.series:
        assert (series.steps[1:] > series.steps[:-1]).all()
