"""What a watch saw of a live job is written down, and shown in the report of the finished run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from align.cli.main import cli
from align.cli.sides import find_run, load
from align.core.errors import RunError
from align.core.metric import MetricLog, MetricSeries
from align.core.run import ArtifactKind
from align.curves.noise import t_quantile
from align.curves.pair import pair_logs
from align.watch.follow import Follower
from align.watch.sequential import first_alarm, trace, watched
from align.watch.watch import Watch
from dumps.readers.watch_record import read_watch
from dumps.store.discover import discover
from dumps.store.run_data import RunData

STEPS, ONSET = 150, 90
TIME = np.arange(1, STEPS + 1)
NAME = "critic/score/mean"


def rewards(seed: int, fall: float = 0.0) -> np.ndarray:
    noise = 0.02 * np.random.default_rng(seed).normal(size=STEPS)
    return 0.1 + 0.6 * (1 - np.exp(-TIME / 40)) - fall * np.clip((TIME - ONSET) / 20, 0, 1) + noise


def folder(path: Path, values: np.ndarray) -> Path:
    path.mkdir()
    lines = (
        f"step:{n} - {NAME}:{float(v)!r} - actor/entropy:0.5\n"
        for n, v in zip(TIME, values, strict=True)
    )
    (path / "console.log").write_text("(TaskRunner pid=7) ".join(["", *lines]))
    return path


def watch(reference: Path, candidate: Path, *more: str) -> int:
    command = ["watch", "--reference", str(reference), str(candidate), "--once", *more]
    return CliRunner().invoke(cli, command).exit_code


def report(reference: Path, candidate: Path) -> dict[str, object]:
    command = ["report", str(reference), str(candidate), "--json"]
    document: dict[str, object] = json.loads(CliRunner().invoke(cli, command).stdout)
    return document


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return folder(tmp_path / "reference", rewards(1))


def test_an_alarm_is_recorded_and_the_report_shows_when_it_came(
    reference: Path, tmp_path: Path
) -> None:
    candidate = folder(tmp_path / "candidate", rewards(2, fall=0.55))
    assert watch(reference, candidate, "-o", str(candidate / "watch.json")) == 1
    record = read_watch(candidate / "watch.json")
    (alarm,) = record.alarms
    assert alarm.metric == NAME and ONSET < alarm.step <= ONSET + 10
    document = report(reference, candidate)
    found = [f for f in document["findings"] if f["id"] == "curves.watch.critic.score.mean"]  # type: ignore[attr-defined]
    assert len(found) == 1 and f"at step {alarm.step}" in found[0]["title"]
    assert "steps later" in found[0]["why"]
    assert "curves.watch" in [t["id"] for rung in document["rungs"] for t in rung["tables"]]  # type: ignore[attr-defined]


def test_its_clean_twin_is_recorded_without_an_alarm(reference: Path, tmp_path: Path) -> None:
    candidate = folder(tmp_path / "candidate", rewards(2))
    before = report(reference, candidate)
    assert watch(reference, candidate, "-o", str(candidate / "watch.json")) == 0
    record = read_watch(candidate / "watch.json")
    assert record.alarms == () and (record.step, record.last_step) == (STEPS, STEPS)
    assert [t.metric for t in record.traces] == [NAME, "actor/entropy"]
    after = report(reference, candidate)
    assert after["verdict"] == before["verdict"]
    assert not [f for f in after["findings"] if "watch" in f["id"]]  # type: ignore[attr-defined]


def test_nothing_is_written_unless_it_is_asked_for(reference: Path, tmp_path: Path) -> None:
    candidate = folder(tmp_path / "candidate", rewards(2))
    watch(reference, candidate)
    assert [p.name for p in candidate.iterdir()] == ["console.log"]


def test_the_trace_passes_its_limit_where_the_alarm_is() -> None:
    ours, theirs = rewards(3), rewards(4, fall=0.55)
    zeros = np.zeros(STEPS)
    logs = [
        MetricLog("x", "x", None, (MetricSeries(NAME, NAME, "x", TIME, v, zeros, TIME),))
        for v in (ours, theirs)
    ]
    pairing = pair_logs(*logs)
    (metric,) = watched(pairing)
    seen, alarm = trace(metric, 1, 0), first_alarm(metric, 1, 0)
    assert seen is not None and alarm is not None
    loud = [
        step
        for step, deviation, size in zip(seen.steps, seen.deviations, seen.sizes, strict=True)
        if deviation > seen.limit and size >= 1
    ]
    assert loud[0] == alarm.step
    # 1 % over 500 steps, eight windows and one metric, as Student's t of many degrees has it.
    assert t_quantile(1 - 0.01 / (500 * 8), 1e9) < seen.limit < 2 * t_quantile(1 - 2.5e-6, 1e9)
    assert not math.isnan(seen.limit)


def test_what_is_traced_look_by_look_is_what_is_traced_at_once(
    reference: Path, tmp_path: Path
) -> None:
    lines = (folder(tmp_path / "whole", rewards(6)) / "console.log").read_text().splitlines(True)
    log = load(find_run(reference, ()), lambda _: None).metrics
    live = tmp_path / "live.log"
    followed = Watch(log, Follower(live))
    for begin in range(0, STEPS, 23):
        with live.open("a") as file:
            file.writelines(lines[begin : begin + 23])
        followed.poll()
        seen = followed.traces()
    at_once = Watch(log, Follower(tmp_path / "whole" / "console.log"))
    at_once.poll()
    assert seen == at_once.traces() and len(seen[0].steps) == STEPS - 4


def test_the_record_is_found_among_the_files_of_a_run_and_half_of_one_is_a_problem(
    reference: Path, tmp_path: Path
) -> None:
    candidate = folder(tmp_path / "candidate", rewards(2))
    file = candidate / "watch.json"
    watch(reference, candidate, "-o", str(file))
    run = discover([candidate])
    assert [a.path.name for a in run.of_kind(ArtifactKind.WATCH)] == ["watch.json"]
    file.write_text(file.read_text()[:-40])
    data = RunData(discover([candidate]))
    assert data.watches == () and "no record of a watch" in str(data.problems[0])


def test_a_file_that_cannot_be_written_is_said(reference: Path, tmp_path: Path) -> None:
    candidate = folder(tmp_path / "candidate", rewards(2))
    (tmp_path / "file").write_text("")
    command = ["watch", "--reference", str(reference), str(candidate), "--once"]
    done = CliRunner().invoke(cli, [*command, "-o", str(tmp_path / "file" / "watch.json")])
    assert isinstance(done.exception, RunError) and "cannot be written" in str(done.exception)
