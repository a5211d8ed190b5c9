"""The run folder: whole files, one index, several writers, and what a killed one leaves."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from align.cli.capture_view import steps_as_text
from align.cli.run import command
from align.core.errors import RunError
from align.core.rollout_record import RolloutRecord
from dumps.capture.failures import FailureLog
from dumps.capture.plan import parse_steps
from dumps.capture.writer import WriteFile, Writer, write_whole
from dumps.readers.rollout_store import read_store
from dumps.store.rollout_file import write_records
from dumps.store.run_index import append_file, append_whole, read_index
from dumps.store.verify import prune, verify


def written(run: Path, name: str = "actor-0", steps: tuple[int, ...] = (1, 2)) -> Path:
    writer = Writer(run, name, FailureLog(run, name))
    for step in steps:
        file = {f"steps/{step}/{name}.txt": text_file(f"{name} {step}")}
        writer.submit(step, lambda file=file: file)  # type: ignore[misc]
    writer.drain()
    return run


def text_file(text: str) -> WriteFile:
    return lambda path: path.write_text(text)


def write_many(run: Path, name: str) -> None:
    written(run, name, tuple(range(1, 21)))


def test_a_file_is_entered_with_the_checksum_of_its_bytes(tmp_path: Path) -> None:
    entry = read_index(written(tmp_path, steps=(1,))).files[0]
    assert entry.file == "steps/1/actor-0.txt"
    assert entry.sha256 == hashlib.sha256(b"actor-0 1").hexdigest()
    assert (entry.size_bytes, entry.step, entry.writer) == (9, 1, "actor-0")


def test_several_processes_write_one_run_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    names = [f"actor-{rank}" for rank in range(3)]
    ranks = [context.Process(target=write_many, args=(tmp_path, name)) for name in names]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    verified = verify(tmp_path)
    assert verified.whole_steps == tuple(range(1, 21))
    assert verified.num_files == 60
    assert verified.is_whole


def test_a_step_that_one_rank_has_not_finished_is_not_whole(tmp_path: Path) -> None:
    written(written(tmp_path, "actor-0", (1, 2)), "actor-1", (1,))
    verified = verify(tmp_path)
    assert (verified.whole_steps, verified.broken_steps) == ((1,), (2,))
    assert not verified.is_whole


def test_a_killed_writer_loses_the_step_in_progress_alone(tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib\n"
        "from dumps.capture.failures import FailureLog\n"
        "from dumps.capture.writer import Writer\n"
        "run = pathlib.Path(sys.argv[1])\n"
        "def slow(path):\n"
        "    path.write_text('half')\n"
        "    time.sleep(60)\n"
        "writer = Writer(run, 'actor-0', FailureLog(run, 'actor-0'))\n"
        "for step in (1, 2, 3):\n"
        "    files = {f'steps/{step}.txt': lambda path: path.write_text('whole')}\n"
        "    files = files if step < 3 else {'steps/3.txt': slow}\n"
        "    writer.submit(step, lambda files=files: files)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    end = time.monotonic() + 30
    while not list(tmp_path.rglob(".3.txt.*.part")) and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    verified = verify(tmp_path)
    assert verified.whole_steps == (1, 2)
    assert [Path(name).name.split(".")[1] for name in verified.unfinished] == ["3"]
    assert not (tmp_path / "steps/3.txt").exists()


@given(cut=st.integers(min_value=1, max_value=200))
def test_an_index_cut_anywhere_still_gives_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    run = written(tmp_path_factory.mktemp("run"), steps=(1, 2, 3))
    index = run / "index/actor-0.jsonl"
    whole = index.read_bytes()
    index.write_bytes(whole[: max(0, len(whole) - cut)])
    lines = index.read_bytes().split(b"\n")
    complete = [line for line in lines if line.endswith(b"}")]
    read = read_index(run)
    assert len(read.files) + len(read.whole["actor-0"]) == len(complete)
    assert len(read.torn) == (0 if lines[-1] in (b"", *complete) else 1)


def test_a_writer_that_goes_on_after_a_torn_line_starts_on_a_fresh_one(tmp_path: Path) -> None:
    run = written(tmp_path, steps=(1,))
    with (run / "index/actor-0.jsonl").open("a") as file:
        file.write('{"file": "steps/2')
    append_whole(run, "actor-0", 2)
    assert read_index(run).whole["actor-0"] == {1, 2}
    assert len(read_index(run).torn) == 1


def test_a_failing_write_leaves_no_file_and_is_logged(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    writer = Writer(tmp_path, "actor-0", FailureLog(tmp_path, "actor-0"))
    writer.submit(1, lambda: {"steps/1.txt": fails})
    writer.submit(2, lambda: {"steps/2.txt": lambda path: path.write_text("fine")})
    writer.drain()
    assert not list(tmp_path.rglob("*.part")) and not (tmp_path / "steps/1.txt").exists()
    assert "disk full" in (tmp_path / "capture.log").read_text()
    assert read_index(tmp_path).whole["actor-0"] == {2}


def test_a_forked_child_does_not_wait_for_what_its_parent_writes(tmp_path: Path) -> None:
    released = threading.Event()

    def held_up(path: Path) -> None:
        released.wait(120)
        path.touch()

    writer = Writer(tmp_path, "actor-0", FailureLog(tmp_path, "actor-0"))
    writer.submit(1, lambda: {"x.txt": held_up})
    child = os.fork()
    if not child:
        writer.drain()
        os._exit(0)
    end = time.monotonic() + 60
    while not (done := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < end:
        time.sleep(0.01)
    released.set()
    assert done == child
    writer.drain()


def test_a_changed_and_a_missing_file_are_named(tmp_path: Path) -> None:
    run = written(tmp_path, steps=(1, 2, 3))
    (run / "steps/1/actor-0.txt").write_text("actor-0 X")
    (run / "steps/2/actor-0.txt").unlink()
    verified = verify(run)
    assert verified.changed == ("steps/1/actor-0.txt",)
    assert verified.missing == ("steps/2/actor-0.txt",)
    assert (verified.whole_steps, verified.broken_steps) == ((3,), (1, 2))


def test_an_untouched_run_verifies(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["verify", str(written(tmp_path)), "--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["is_whole"] and document["whole_steps"] == [1, 2]


def test_verify_exits_1_where_a_file_was_changed(tmp_path: Path) -> None:
    (written(tmp_path) / "steps/1/actor-0.txt").write_text("other")
    result = CliRunner().invoke(command, ["verify", str(tmp_path)])
    assert result.exit_code == 1
    assert "not what was written: steps/1/actor-0.txt" in result.output


def test_a_folder_without_an_index_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="align run add"):
        verify(tmp_path)


def test_prune_removes_files_and_entries_of_the_steps_it_is_given(tmp_path: Path) -> None:
    run = written(written(tmp_path, "actor-0", (1, 2, 3)), "actor-1", (1, 2, 3))
    removed = prune(run, ((2, 3),))
    assert removed == [f"steps/{s}/actor-{r}.txt" for s in (2, 3) for r in (0, 1)]
    assert verify(run).whole_steps == (1,)
    assert verify(run).is_whole


def test_added_files_are_copied_and_checked_and_do_not_break_steps(tmp_path: Path) -> None:
    run = written(tmp_path / "run")
    other = tmp_path / "console.log"
    other.write_text("step:1 - a:2\n")
    assert CliRunner().invoke(command, ["add", str(run), str(other)]).exit_code == 0
    assert verify(run).whole_steps == (1, 2)
    (run / "added/console.log").write_text("step:1 - a:3\n")
    assert verify(run).changed == ("added/console.log",)


def test_a_file_is_whole_or_absent_when_its_writer_is_interrupted(tmp_path: Path) -> None:
    def interrupted(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x.txt", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_a_file_gets_the_mode_the_umask_gives(tmp_path: Path) -> None:
    def private(path: Path) -> None:
        path.write_text("x")
        path.chmod(0o600)

    (tmp_path / "plain").touch()
    path = write_whole(tmp_path / "x", private)
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_rollout_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        RolloutRecord("p", "r", (1, 2), (3,), (-0.5,), 1.0, 1, 7, 0, "stop", "4", "u", {"a": 1}),
        RolloutRecord(response="", step=1),
    ]
    write_records(tmp_path / "step=000001.parquet", rows)
    assert list(read_store(tmp_path / "step=000001.parquet")) == rows


@pytest.mark.parametrize(
    ("text", "ranges"),
    [("", ()), ("3", ((3, 3),)), ("1-3,10", ((1, 3), (10, 10))), (" 1 - 2 ", ((1, 2),))],
)
def test_steps_are_read_as_ranges(text: str, ranges: tuple[tuple[int, int], ...]) -> None:
    assert parse_steps(text) == ranges


@pytest.mark.parametrize("text", ["a", "3-1", "0", "1-", "-3", "1--2", "1.5"])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(RunError, match="--steps"):
        parse_steps(text)


@given(steps=st.sets(st.integers(min_value=1, max_value=60), min_size=1))
def test_steps_read_back_from_their_text(steps: set[int]) -> None:
    ranges = parse_steps(steps_as_text(sorted(steps)))
    assert {s for low, high in ranges for s in range(low, high + 1)} == steps


def test_a_file_entered_twice_counts_once_with_its_last_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for text in ("first", "second"):
        path.write_text(text)
        append_file(tmp_path, "actor-0", path, None)
    assert [f.sha256 for f in read_index(tmp_path).files] == [hashlib.sha256(b"second").hexdigest()]
