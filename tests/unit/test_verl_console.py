"""Console logs of verl, real ones and every trap they set."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import DumpError
from align.core.metric import MetricLog
from dumps.readers.reader import Glimpse, no_progress
from dumps.readers.verl_console import READER

# Counts and ranges as INDEX.md of the corpus states them:
# file, metric lines, steps, keys a line, distinct keys, share of values with three decimals.
INDEX = [
    ("ppo_gpu_v01_61steps_3decimals.log", 61, (0, 60), (46, 48), 48, 1.0),
    ("ppo_gpu_v03_resumed_at_101.log", 335, (101, 435), (65, 68), 68, 1.0),
    ("dapo_gpu_v05_201steps_invalid_utf8.out", 201, (0, 200), (60, 158), 158, 0.0),
    ("grpo_gpu_v08_110steps_tqdm.txt", 110, (0, 109), (7, 107), 107, 0.0),
    ("grpo_npu_sync_repeat_a.txt", 59, (0, 58), (5, 76), 76, 0.0),
    ("grpo_npu_sync_repeat_b.txt", 59, (0, 58), (5, 76), 76, 0.0),
    ("grpo_npu_fullyasync_3lines_a_step.txt", 90, (1, 30), (1, 100), 111, 0.0),
    ("sft_gpu_4500steps.log", 4501, (1, 4500), (1, 2), 3, 0.0),
    ("grpo_gpu_v01_reward_chatter.log", 2, (0, 1), (1, 48), 49, 1.0),
    ("markdown_with_console.md", 16, (1, 250), (1, 2), 3, 0.0),
]
NUM_VALUES = {
    "ppo_gpu_v01_61steps_3decimals.log": 2818,
    "ppo_gpu_v03_resumed_at_101.log": 21877,
    "dapo_gpu_v05_201steps_invalid_utf8.out": 11552 + 1600 + 773 + 131,
    "grpo_gpu_v08_110steps_tqdm.txt": 8441 + 1897 + 570 + 58,
    "grpo_npu_fullyasync_3lines_a_step.txt": 2967 + 53 + 32 + 4,
}


def read(path: Path) -> MetricLog:
    return READER.read(path, no_progress)


def read_text(folder: Path, text: str | bytes, name: str = "a log") -> MetricLog:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


def knows(path: Path) -> bool:
    return READER.sniff(Glimpse(path, path.stat().st_size))


def values(log: MetricLog, key: str) -> dict[int, float]:
    series = log.get(key)
    assert series is not None
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


@pytest.mark.parametrize(("name", "lines", "steps", "keys", "distinct", "rounded"), INDEX)
def test_real_logs_have_the_counts_of_the_index(
    corpus: Path,
    name: str,
    lines: int,
    steps: tuple[int, int],
    keys: tuple[int, int],
    distinct: int,
    rounded: float,
) -> None:
    path = corpus / "verl_logs" / name
    log = read(path)
    assert knows(path)
    assert log.num_metric_lines == lines
    assert log.step_range == steps
    assert (log.min_keys_per_line, log.max_keys_per_line) == keys
    assert len(log.series) == distinct
    resolutions = [value for series in log.series for value in series.resolution.tolist()]
    assert set(resolutions) == ({0.001} if rounded else {0.0})
    assert log.num_overwritten == log.num_skipped == 0
    assert sum(map(len, log.series)) == NUM_VALUES.get(name, sum(map(len, log.series)))


def test_every_value_of_a_real_log_is_where_an_independent_search_finds_it(corpus: Path) -> None:
    path = corpus / "verl_logs" / "grpo_npu_fullyasync_3lines_a_step.txt"
    rows = path.read_bytes().decode("utf-8", "replace").split("\n")
    log = read(path)
    for series in log.series:
        for step, value, line in zip(series.steps, series.values, series.lines, strict=True):
            printed = f" {series.spelling}:{float(value)!r}"
            row = re.sub(r"\x1b\[\d+m", "", rows[int(line) - 1])
            assert f"step:{step} - " in row
            assert printed in row or f" {series.spelling}:{int(value)}" in row


def test_npu_excerpt_with_numpy_scalars(corpus: Path) -> None:
    log = read(corpus / "verl_logs" / "grpo_npu_v09_npfloat_excerpt.log")
    assert (log.num_metric_lines, log.step_range) == (3, (0, 2))
    assert values(log, "val-core/openai/gsm8k/acc/mean@1")[0] == 0.24715693707354056
    assert values(log, "val-aux/num_turns/max")[0] == 2.0


def test_a_log_without_a_step_quotes_its_last_error(corpus: Path) -> None:
    path = corpus / "verl_logs" / "no_step_crash_b.log"
    assert knows(path)
    log = read(path)
    assert log.series == () and log.step_range is None and log.num_metric_lines == 0
    assert log.framework == "verl"
    assert log.last_error is not None and log.last_error.text is not None
    assert log.last_error.line == 609
    assert log.last_error.text.startswith("torch.OutOfMemoryError: CUDA out of memory")
    assert log.notes[0] == "no metric line: the run printed no step"


def test_a_log_that_just_stops_blames_no_warning_of_its_surroundings(corpus: Path) -> None:
    # Its only lines marked as errors are Ray's disk monitor and wandb's look for a git folder.
    log = read(corpus / "verl_logs" / "no_step_crash_a.log")
    assert (log.num_metric_lines, log.framework, log.last_error) == (0, "verl", None)
    assert "no error before it stops in line 281" in log.notes[0]


@pytest.mark.parametrize(
    "version", ["v0.3.0.post1", "v0.4.1", "v0.5.0", "v0.6.1", "v0.7.1", "v0.8.0", "v0.9.0"]
)
def test_the_same_metrics_printed_by_every_version(reference_runs: Path, version: str) -> None:
    log = read(reference_runs / "old_versions" / version / "console_line.txt")
    is_old = version < "v0.5"
    assert values(log, "actor/pg_loss") == {1: 0.012 if is_old else 0.0123456789}
    assert {float(s.resolution[0]) for s in log.series} == {0.001 if is_old else 0.0}
    assert values(log, "response_length/max") == {1: 3.0}


def test_a_recorded_run_agrees_with_its_own_file_logger(reference_runs: Path) -> None:
    run = reference_runs / "v091_v1_fsdp2"
    log = read(run / "console_full.log")
    records = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    num_compared = 0
    for record in records:
        for key, value in record["data"].items():
            if isinstance(value, int | float):
                assert values(log, key)[record["step"]] == float(value)
                num_compared += 1
    assert num_compared == sum(map(len, log.series)) > 250


def test_text_glued_before_and_after_is_no_part_of_the_numbers(tmp_path: Path) -> None:
    log = read_text(
        tmp_path,
        "Epoch 1/2:   0%|   | 0/62 [00:00<?, ?it/s]step:1 - train/loss:1.5 - train/lr(1e-3):2e-05\n"
        "\x1b[36m(TaskRunner pid=7, ip=10.0.0.1)\x1b[0m step:2 - train/loss:1.25 - "
        "train/lr(1e-3):10.51792579895213\x1b[36m(TaskRunner pid=734656)\x1b[0m next - a:9\n"
        "  1%|\r  2%|\rstep:3 - train/loss:1.0 - train/lr(1e-3):3e-05\r  3%|\n",
    )
    assert values(log, "train/loss") == {1: 1.5, 2: 1.25, 3: 1.0}
    assert values(log, "train/lr(1e-3)") == {1: 2e-05, 2: 10.51792579895213, 3: 3e-05}
    series = log.get("train/loss")
    assert series is not None and series.lines.tolist() == [1, 2, 3]
    assert {s.spelling for s in log.series} == {"train/loss", "train/lr(1e-3)"}


def test_keys_that_end_like_an_anchor_are_no_anchor(tmp_path: Path) -> None:
    log = read_text(
        tmp_path,
        "step:3 - training/global_step:7 - training/epoch:0 - timing_s/step:31 - a:0.5\n"
        "lost start training/global_step:9 - training/epoch:0\nsubstep:4 - b:1\n",
    )
    assert log.num_metric_lines == 1 and log.step_range == (3, 3)
    assert values(log, "timing_s/step") == {3: 31.0}
    assert values(log, "training/global_step") == {3: 7.0}


def test_colour_in_the_middle_blanks_after_the_colon_and_wrapped_numbers(tmp_path: Path) -> None:
    log = read_text(
        tmp_path,
        "\x1b[36m(TaskRunner pid=1)\x1b[0m step:20 - key: 0.71 - a/b:\x1b[1m2\x1b[0m - "
        "c:np.float64(-1e-05) - d:np.int64(4) - e:tensor(0.5, device='npu:0') - f@1/x:1.5\x1b[0m\n",
    )
    assert {s.spelling: s.values.tolist() for s in log.series} == {
        "key": [0.71],
        "a/b": [2.0],
        "c": [-1e-05],
        "d": [4.0],
        "e": [0.5],
        "f@1/x": [1.5],
    }


def test_nan_and_infinity_stay_what_they_are(tmp_path: Path) -> None:
    text = "step:1 - a:nan - b:inf - c:-inf - d:np.float64(nan) - e:0.125\n" * 2
    log = read_text(tmp_path, text)
    assert math.isnan(values(log, "a")[1]) and math.isnan(values(log, "d")[1])
    assert values(log, "b")[1] == math.inf and values(log, "c")[1] == -math.inf
    assert log.num_overwritten == 5


def test_several_lines_a_step_with_other_keys_are_merged(tmp_path: Path) -> None:
    log = read_text(
        tmp_path, "step:1 - a:1 - b:2\nstep:1 - c:3\nstep:2 - a:4 - b:5\nstep:2 - c:6\n"
    )
    assert values(log, "a") == {1: 1.0, 2: 4.0} and values(log, "c") == {1: 3.0, 2: 6.0}
    assert (log.num_metric_lines, log.num_overwritten) == (4, 0)


def test_of_a_repeated_step_the_later_line_wins_and_is_counted(tmp_path: Path) -> None:
    first = "".join(f"step:{i} - a:{i}.5 - b:0\n" for i in range(1, 6))
    resumed = "".join(f"step:{i} - a:{i}.75 - c:1\n" for i in range(4, 9))
    log = read_text(tmp_path, first + resumed)
    assert list(values(log, "a").values()) == [1.5, 2.5, 3.5, 4.75, 5.75, 6.75, 7.75, 8.75]
    assert list(values(log, "b")) == [1, 2, 3, 4, 5]
    assert log.num_overwritten == 2 and "resumed" in log.notes[0]


def test_two_real_runs_in_one_file_keep_the_second(corpus: Path, tmp_path: Path) -> None:
    folder = corpus / "verl_logs"
    a = (folder / "grpo_npu_sync_repeat_a.txt").read_bytes()
    b = folder / "grpo_npu_sync_repeat_b.txt"
    log, second = read_text(tmp_path, a + b.read_bytes()), read(b)
    assert log.num_metric_lines == 118
    assert log.num_overwritten == sum(map(len, second.series))
    for series in second.series:
        assert values(log, series.spelling) == values(second, series.spelling)


def test_three_decimals_mean_rounding_only_where_the_whole_line_has_them(tmp_path: Path) -> None:
    old = "step:{} - lr:0.000 - loss:1.250 - n:512.000 - x:nan\n"
    new = "step:{} - lr:1e-06 - loss:1.250 - n:512 - x:0.125\n"
    log = read_text(tmp_path, old.format(1) + new.format(2) + old.format(3))
    for series in log.series:
        assert series.resolution.tolist() == [0.001, 0.0, 0.001]
    assert values(log, "lr") == {1: 0.0, 2: 1e-06, 3: 0.0}


def test_short_lines_are_judged_together_and_by_the_long_ones(tmp_path: Path) -> None:
    long = "step:1 - a:0.5 - b:1.25 - c:1 - d:2\n"
    complete = read_text(tmp_path, long + "step:1 - val/acc:0.515\n").get("val/acc")
    rounded = read_text(tmp_path, "step:1 - loss:0.515\nstep:2 - loss:0.125\n").get("loss")
    mixed = read_text(tmp_path, "step:1 - loss:0.515\nstep:2 - loss:0.1251\n").get("loss")
    assert complete is not None and complete.resolution.tolist() == [0.0]
    assert rounded is not None and rounded.resolution.tolist() == [0.001, 0.001]
    assert mixed is not None and mixed.resolution.tolist() == [0.0, 0.0]


def test_what_is_no_number_is_counted_and_the_rest_kept(tmp_path: Path) -> None:
    log = read_text(tmp_path, "x\nstep:1 - a:1 - name:'grpo' - b:2\nstep:2 - \nstep:3 - a:4\n")
    assert values(log, "a") == {1: 1.0, 3: 4.0} and values(log, "b") == {1: 2.0}
    assert log.num_skipped == 2
    assert [(skipped.line, skipped.why[:9]) for skipped in log.skipped] == [
        (2, "no number"),
        (3, "step 2 wi"),
    ]


def test_an_error_before_the_last_step_is_not_what_stopped_the_run(tmp_path: Path) -> None:
    chatter = "ValueError: could not parse the answer\n"
    survived = read_text(tmp_path, chatter + "step:1 - a:1\nbye\n")
    died = read_text(tmp_path, "step:1 - a:1\n" + chatter + "INFO later\n")
    assert survived.last_error is None
    assert died.last_error is not None and died.last_error.line == 2


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: NPU out of memory. Tried to allocate 2 GiB",
        "EI0006: Getting socket times out. Reason: remote rank is dead",
        "[rank3]: torch.distributed.DistBackendError: HCCL error in: ProcessGroupHCCL.cpp:64",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "Error executing job with overrides: ['data.train_batch_size=8']",
        "Killed",
        "Could not override 'actor_rollout_ref.rollout.m'.",
        "main_ppo.py: error: unrecognized arguments: --n 8",
        "[2025-03-02 11:57:10,796 E 451 452] (raylet) node_manager.cc:3040: 2 Workers (tasks / "
        "actors) killed due to memory pressure (OOM)",
    ],
)
def test_errors_of_every_kind_are_quoted(tmp_path: Path, line: str) -> None:
    noise = "\x1b[36m(WorkerDict pid=2)\x1b[0m x.py:3: FutureWarning: RuntimeError: is fine\n"
    log = read_text(tmp_path, f"{noise}\x1b[36m(TaskRunner pid=1)\x1b[0m {line}\n{noise}")
    assert log.last_error is not None
    assert (log.last_error.line, log.last_error.text) == (2, line)


def test_an_exception_outranks_what_services_log_after_it(tmp_path: Path) -> None:
    disk = "(raylet) [2025-03-02 11:57:10,796 E 451 452] (raylet) file_system_monitor.cc:111: full"
    log = read_text(tmp_path, f"(TaskRunner pid=1) ValueError: no such key\n{disk}\n")
    assert log.last_error is not None and log.last_error.line == 1


@pytest.mark.parametrize(("header", "counts"), [("Exception ignored in: <f>\n", False), ("", True)])
def test_an_exception_that_python_ignored_did_not_stop_the_run(
    tmp_path: Path, header: str, counts: bool
) -> None:
    frame = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    rows = f"{header}{frame}OSError: lost\n"
    prefixed = "".join(f"(TaskRunner pid=1) {row}\n" for row in rows.splitlines())
    assert (read_text(tmp_path, f"step:1 - a:1\n{prefixed}").last_error is not None) is counts
    died = read_text(tmp_path, f"step:1 - a:1\n{prefixed}(TaskRunner pid=1) KeyError: 'n'\n")
    assert died.last_error is not None and died.last_error.text == "KeyError: 'n'"


def test_a_warning_alone_is_no_error(tmp_path: Path) -> None:
    log = read_text(tmp_path, "(WorkerDict pid=2) a.py:1: UserWarning: RuntimeError: ignored\n")
    assert log.last_error is None


def test_half_a_character_at_the_end_is_named(tmp_path: Path) -> None:
    log = read_text(tmp_path, "step:1 - a:1\n日".encode()[:-1])
    assert "half a UTF-8 character" in log.notes[0]


def test_a_notebook_cell_and_a_recording_are_read_like_the_log(tmp_path: Path) -> None:
    rows = [f"\x1b[36m(main_task pid=2)\x1b[0m step:{i} - a:{i}.5\n" for i in range(3)]
    cell = {"cell_type": "code", "source": [], "outputs": [{"name": "stdout", "text": rows}]}
    notebook = json.dumps({"cells": [cell], "nbformat": 4}, indent=1)
    events = [{"version": 2, "width": 80, "height": 24}] + [[1.0, "o", row] for row in rows]
    recording = "\n".join(map(json.dumps, events))
    for text in (notebook, recording):
        log = read_text(tmp_path, text, "训练 记录")
        assert knows(tmp_path / "训练 记录")
        assert values(log, "a") == {0: 0.5, 1: 1.5, 2: 2.5}
        series = log.get("a")
        numbered = text.split("\n")
        assert series is not None
        for step, line in zip(series.steps, series.lines, strict=True):
            assert f"step:{step} " in numbered[int(line) - 1]


@pytest.mark.parametrize(
    "text",
    [
        '{"step":1,"data":{"actor/lr":1e-6}}\n{"step":2,"data":{"actor/lr":1e-6}}\n',
        '[{"text": "step:1 - a:1"}]',
        '{"input": "step:1 - actor/lr:0.5", "output": "(TaskRunner pid=1)", "step": 1}\n',
        "step,actor/lr\n1,1e-6\n2,1e-6\n",
        "actor_rollout_ref:\n  actor:\n    ppo_mini_batch_size: 64\ntrainer:\n  n_gpus: 8\n",
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo\n",
        "INFO:root:[2025-03-21 14:30:40] iteration: 1 / 10 | timing/gen : 25.2736 | \n",
        "plain words about step: 3 and nothing else\n",
    ],
)
def test_other_formats_are_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(text)
    assert not knows(path)


def test_no_other_file_of_the_corpus_is_taken_for_a_log(corpus: Path) -> None:
    logs = {"verl_logs", "mindspeed_rl", "verl_configs"}
    others = [
        p for p in corpus.rglob("*") if p.is_file() and p.relative_to(corpus).parts[0] not in logs
    ]
    assert len(others) > 30
    assert [path for path in others if knows(path)] == []


def test_something_else_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"Git-LFS pointer.*git lfs pull"):
        read_text(tmp_path, b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n")


METRIC = "step:{} - actor/lr:1e-06 - a:np.float64(0.5) - training/global_step:1 - b:nan\n"


@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.integers(0, 9).map(lambda step: METRIC.format(step).encode()),
            st.sampled_from(
                [
                    b"step:",
                    b"\x1b[36m",
                    b"\r",
                    b"\n",
                    b" - ",
                    b"step:99999999999999 - ",
                    b"a:1e999",
                    b"(x pid=1)",
                    b'{"cells": [',
                    b"Error: ",
                    b"\xe6\x97",
                ]
            ),
        ),
        max_size=12,
    )
)
def test_any_mixture_of_bytes_gives_a_log_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_bytes(b"".join(pieces))
    knows(path)
    try:
        log = read(path)
    except DumpError:
        return
    for series in log.series:
        assert (series.steps[1:] > series.steps[:-1]).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_real_log_cut_shuffled_or_doubled_still_gives_what_it_has(
    corpus: Path, tmp_path: Path, seed: int
) -> None:
    data = (corpus / "verl_logs" / "grpo_npu_sync_repeat_a.txt").read_bytes()
    chance = random.Random(seed)
    cut = chance.randrange(len(data))
    rows = data.split(b"\n")
    chance.shuffle(rows)
    whole = read_text(tmp_path, data)
    shuffled, doubled = read_text(tmp_path, b"\n".join(rows)), read_text(tmp_path, data + data)
    assert read_text(tmp_path, data[:cut]).num_metric_lines <= whole.num_metric_lines
    for series in whole.series:
        assert values(shuffled, series.spelling) == values(whole, series.spelling)
        assert values(doubled, series.spelling) == values(whole, series.spelling)
    assert doubled.num_overwritten == sum(map(len, whole.series))
