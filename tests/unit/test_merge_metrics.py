"""Several metric files of one run become one log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.metric import MetricLog, MetricSeries
from align.frameworks.vocabulary import metric_name
from dumps.readers.filelogger_jsonl import READER as FILELOGGER
from dumps.readers.mindspeed_rl_console import READER as MINDSPEED_RL_CONSOLE
from dumps.readers.reader import no_progress
from dumps.readers.tensorboard_events import READER as TENSORBOARD
from dumps.readers.verl_console import READER as VERL_CONSOLE
from dumps.store.merge_metrics import merge_logs

NAN = float("nan")


def series(
    source: str,
    spelling: str,
    values: Mapping[int, float],
    resolution: float = 0.0,
    framework: str | None = "verl",
) -> MetricSeries:
    return MetricSeries(
        name=metric_name(framework, spelling),
        spelling=spelling,
        source=source,
        steps=np.array(list(values), dtype=np.int64),
        values=np.array(list(values.values()), dtype=np.float64),
        resolution=np.full(len(values), resolution),
        lines=np.arange(1, len(values) + 1),
    )


def log(
    source: str, *parts: MetricSeries, framework: str | None = "verl", notes: Sequence[str] = ()
) -> MetricLog:
    return MetricLog(source, "test", framework, parts, num_metric_lines=1, notes=tuple(notes))


def values(merged: MetricLog, name: str) -> dict[int, float]:
    found = merged.get(name)
    assert found is not None
    return dict(zip(found.steps.tolist(), found.values.tolist(), strict=True))


def test_complete_values_count_before_printed_ones_and_gaps_are_filled() -> None:
    console = log("console", series("console", "actor/lr", {1: 0.0, 2: 0.0, 3: 0.0}, 1e-3))
    events = log("events", series("events", "actor/lr", {2: 9.999999974752427e-07}, 5.7e-14))
    rows = log("rows", series("rows", "actor/lr", {3: 1e-6}))
    merged = merge_logs([rows, events, console])
    assert values(merged, "actor/lr") == {1: 0.0, 2: 9.999999974752427e-07, 3: 1e-6}
    assert not [note for note in merged.notes if "differ" in note]


def test_spelling_source_and_lines_are_those_of_most_values() -> None:
    old = log("old", series("old", "actor/entropy_loss", {1: 0.5, 2: 0.25, 3: 0.125}))
    new = log("new", series("new", "actor/entropy", {4: 0.75}))
    (entropy,) = merge_logs([old, new]).series
    assert (entropy.name, entropy.spelling, entropy.source) == (
        "actor/entropy",
        "actor/entropy_loss",
        "old",
    )
    assert entropy.lines.tolist() == [1, 2, 3, 0]


def test_a_restart_wins_and_what_it_changes_is_said() -> None:
    first = log("a", series("a", "critic/score/mean", {1: 0.1, 2: 0.2, 3: 0.3}))
    restart = log("b", series("b", "critic/score/mean", {2: 0.2, 3: 0.35, 4: 0.4}))
    merged = merge_logs([first, restart])
    assert values(merged, "critic/score/mean") == {1: 0.1, 2: 0.2, 3: 0.35, 4: 0.4}
    (note,) = merged.notes
    assert note == (
        "1 values of 1 metrics differ between files of this run, for example critic/score/mean "
        "at step 3: 0.35 in b (used), 0.3 in a"
    )


@pytest.mark.parametrize("other, differs", [(0.1235, False), (0.125, True), (NAN, True)])
def test_a_difference_within_the_printed_form_is_none(other: float, differs: bool) -> None:
    exact = log("rows", series("rows", "actor/kl_loss", {1: 0.12345}))
    printed = log("console", series("console", "actor/kl_loss", {1: other}, 1e-3))
    notes = merge_logs([exact, printed]).notes
    assert bool(notes) is differs


def test_equal_nan_and_infinity_agree() -> None:
    one = log("a", series("a", "actor/grad_norm", {1: NAN, 2: np.inf}))
    two = log("b", series("b", "actor/grad_norm", {1: NAN, 2: np.inf}))
    merged = merge_logs([one, two])
    assert merged.notes == ()
    assert str(values(merged, "actor/grad_norm")) == "{1: nan, 2: inf}"


def test_a_file_that_tells_no_framework_takes_the_runs() -> None:
    console = log(
        "console",
        series("console", "grpo/score/mean", {1: 0.5}, framework="mindspeed_rl"),
        framework="mindspeed_rl",
    )
    plain = log("csv", series("csv", "actor/pg_loss", {1: 0.25}, framework=None), framework=None)
    merged = merge_logs([plain, console])
    assert merged.framework == "mindspeed_rl"
    assert [s.name for s in merged.series] == ["actor/total_loss_abs", "critic/score/mean"]


def test_files_of_two_frameworks_are_named() -> None:
    merged = merge_logs([log("a", framework="verl"), log("b", framework="trl")])
    assert merged.framework is None
    assert merged.notes == ("the files of this run come from several frameworks: trl, verl",)


def test_no_file_gives_an_empty_log() -> None:
    merged = merge_logs([])
    assert (merged.series, merged.step_range, merged.num_lines) == ((), None, 0)


def test_notes_say_which_file_they_are_of() -> None:
    assert merge_logs([log("a", notes=["cut"]), log("b")]).notes == ("a: cut",)
    assert merge_logs([log("a", notes=["cut"])]).notes == ("cut",)


def test_console_and_events_of_one_run_make_one_log(corpus: Path) -> None:
    console = VERL_CONSOLE.read(
        corpus / "verl_logs" / "grpo_gpu_v08_110steps_tqdm.txt", no_progress
    )
    (events,) = (corpus / "metrics" / "tb_grpo_gpu_v08").iterdir()
    merged = merge_logs([console, TENSORBOARD.read(events, no_progress)])
    assert merged.step_range == (0, 134)
    assert (len(merged.series), merged.framework) == (107, "verl")
    assert not [note for note in merged.notes if "differ" in note]
    score = merged.get("critic/score/mean")
    printed = console.get("critic/score/mean")
    assert score is not None and printed is not None
    np.testing.assert_array_equal(score.values[: len(printed)], printed.values)  # float64 kept


def test_console_rows_and_events_of_a_recorded_run_say_the_same(reference_runs: Path) -> None:
    folder = reference_runs / "v091_v1_fsdp2"
    (events,) = (folder / "tb").iterdir()
    merged = merge_logs(
        [
            VERL_CONSOLE.read(folder / "console_full.log", no_progress),
            FILELOGGER.read(folder / "metrics.jsonl", no_progress),
            TENSORBOARD.read(events, no_progress),
        ]
    )
    assert (merged.step_range, len(merged.series), merged.notes) == ((0, 3), 102, ())


def mindspeed_rl(**parts: Mapping[int, float]) -> MetricLog:
    spelled = {name.replace("__", "/"): values for name, values in parts.items()}
    made = [series("a", name, v, framework="mindspeed_rl") for name, v in spelled.items()]
    return merge_logs([log("a", *made, framework="mindspeed_rl")])


def test_a_reward_normalised_within_its_group_is_not_called_a_reward(corpus: Path) -> None:
    path = corpus / "mindspeed_rl" / "log_grpo_qwen25_7b_3iterations.txt"
    merged = merge_logs([MINDSPEED_RL_CONSOLE.read(path, no_progress)])
    assert values(merged, "acc_rewards/mean")[1] == -1.0  # what the reward function gave
    assert values(merged, "critic/score_group_normalised/mean")[1] == 0.0
    assert merged.get("critic/score/mean") is None
    assert [note for note in merged.notes if "normalised within each group" in note]


def test_a_reward_that_is_no_mean_of_zero_stays_a_reward() -> None:
    merged = mindspeed_rl(grpo__score__mean={1: 0.25}, grpo__rewards__mean={1: 0.25})
    assert values(merged, "critic/score/mean") == {1: 0.25}
    assert values(merged, "critic/rewards/mean") == {1: 0.25}
    assert merged.notes == ()


def test_a_reward_of_zero_everywhere_stays_a_reward() -> None:
    merged = mindspeed_rl(
        grpo__score__mean={1: 0.0}, grpo__score__max={1: 0.0}, grpo__rewards__mean={1: 0.0}
    )
    assert values(merged, "critic/score/mean") == {1: 0.0}


def test_a_zero_reward_of_a_later_version_stays_a_reward() -> None:
    merged = mindspeed_rl(
        grpo__score__mean={1: 0.0}, grpo__score__max={1: 1.0}, grpo__score__min={1: -1.0}
    )
    assert values(merged, "critic/score/mean") == {1: 0.0}


def test_an_entropy_that_was_never_computed_is_left_out() -> None:
    merged = mindspeed_rl(actor__entropy={1: 0.0, 2: 0.0}, grpo__score__mean={1: 0.5})
    assert merged.get("actor/entropy") is None
    assert merged.notes == (
        "actor/entropy is logged as 0 when the entropy coefficient is 0: its 2 zeros are left out",
    )
    kept = mindspeed_rl(actor__entropy={1: 0.0, 2: 0.5})
    assert values(kept, "actor/entropy") == {1: 0.0, 2: 0.5}


def test_verl_entropy_of_zero_is_a_symptom_and_stays() -> None:
    merged = merge_logs([log("a", series("a", "actor/entropy", {1: 0.0}))])
    assert values(merged, "actor/entropy") == {1: 0.0}


one_file = st.dictionaries(st.integers(-3, 9), st.sampled_from([0.0, 0.5, NAN]), max_size=6)


@given(st.lists(st.tuples(one_file, st.sampled_from([0.0, 1e-8, 1e-3])), max_size=4))
def test_each_step_has_the_last_of_its_most_complete_values(
    files: list[tuple[dict[int, float], float]],
) -> None:
    logs = [
        log(str(i), series(str(i), "a", dict(sorted(v.items())), r))
        for i, (v, r) in enumerate(files)
        if v
    ]
    merged = merge_logs(logs)
    expected: dict[int, tuple[float, float]] = {}
    for found, resolution in files:  # a plain loop as the second implementation
        for step, value in found.items():
            if step not in expected or resolution <= expected[step][1]:
                expected[step] = (value, resolution)
    if logs:
        assert str(values(merged, "a")) == str({s: expected[s][0] for s in sorted(expected)})
