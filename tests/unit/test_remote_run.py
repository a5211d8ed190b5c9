"""Run folders behind a URL, on fsspec's own file system in memory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("fsspec", reason="fsspec is not installed")

from align.cli.main import cli
from align.core.errors import AlignError, MissingPackageError, RunError
from dumps.store.remote import cache_folder, mirror
from dumps.store.rollout_file import write_records
from dumps.store.run_index import append_file, append_whole
from tests.unit.replay_runs import rows

ROLLOUT = "rollout/step=000001.parquet"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Give a run folder with one whole step."""
    folder = tmp_path / "here"
    (folder / "rollout").mkdir(parents=True)
    write_records(folder / ROLLOUT, rows(1))
    append_file(folder, "driver-0", folder / ROLLOUT, 1)
    append_whole(folder, "driver-0", 1)
    return folder


@pytest.fixture
def store(run: Path) -> Iterator[Any]:
    """Give a store that holds the run under memory://bucket/run."""
    memory = import_module("fsspec").filesystem("memory")
    memory.store.clear()
    memory.pipe({f"/bucket/run/{name}": content for name, content in contents(run).items()})
    yield memory
    memory.store.clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder(os.environ)


URL = "memory://bucket/run"


def align(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)), standalone_mode=False)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_copy_holds_the_bytes_of_the_run_and_nothing_else(
    run: Path, store: Any, cache: Path
) -> None:
    mirrored = mirror(URL, cache)
    assert contents(mirrored.path) == contents(run)
    assert mirrored.num_copied == 2
    assert mirrored.copied_bytes == sum(map(len, contents(run).values()))


def test_only_what_changed_is_copied_again_and_what_is_gone_is_removed(
    store: Any, cache: Path
) -> None:
    first = mirror(URL, cache)
    assert mirror(URL, cache).num_copied == 0
    store.pipe("/bucket/run/metrics.jsonl", b"{}\n")
    again = mirror(URL, cache)
    assert (again.num_copied, again.copied_bytes) == (1, 3)
    store.pipe("/bucket/run/metrics.jsonl", b"[]\n")  # as long as before
    assert mirror(URL, cache).num_copied == 1
    assert (first.path / "metrics.jsonl").read_bytes() == b"[]\n"
    store.rm("/bucket/run/metrics.jsonl")
    assert mirror(URL, cache).num_copied == 0
    assert not (first.path / "metrics.jsonl").exists()


def test_a_file_damaged_in_the_copy_alone_is_found_by_verify(store: Any, cache: Path) -> None:
    assert align("run", "verify", URL).return_value == 0
    (mirror(URL, cache).path / ROLLOUT).write_bytes(b"PAR1")
    done = align("run", "verify", URL)
    assert done.return_value == 1
    assert "not what was written: " + ROLLOUT in done.output


def test_verify_and_show_read_a_run_behind_a_url(store: Any, cache: Path) -> None:
    done = align("run", "verify", "--json", URL)
    assert done.return_value == 0
    document = json.loads(done.stdout)
    assert (document["is_whole"], document["num_files"]) == (True, 1)
    assert "copied 2 files" in done.stderr
    shown = json.loads(align("run", "show", "--json", URL).stdout)
    assert shown["label"].endswith("/run")
    assert [a["kind"] for a in shown["artifacts"] if a["path"].endswith(ROLLOUT)] == ["rollout"]
    store.pipe(f"/bucket/run/{ROLLOUT}", b"PAR1 damaged")
    assert json.loads(align("run", "verify", "--json", URL).stdout)["changed"] == [ROLLOUT]


def test_rollouts_behind_a_url_are_replayed(store: Any, cache: Path, tmp_path: Path) -> None:
    done = align(
        "replay",
        "--rollouts",
        f"{URL}/rollout",
        "--order",
        f"{URL}/rollout",
        "-o",
        tmp_path / "out",
        "--",
        sys.executable,
        "-c",
        "",
    )
    assert done.return_value == 2  # the command trains on nothing
    assert f"recorded rows: {len(rows(1))} exact" in done.output
    assert (tmp_path / "out/.align-replay/rows/step=000001.parquet").is_file()


def test_a_file_url_is_read_in_its_place(run: Path, cache: Path) -> None:
    assert mirror(f"file://{run}", cache).path == run
    assert align("run", "verify", f"file://{run}").return_value == 0
    assert not cache.exists()


@pytest.mark.parametrize("name", ["../../evil", "a/../../../evil", "..\\evil"])
def test_no_file_of_a_store_gets_out_of_the_copy(
    store: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    listed = {f"/bucket/run/{name}": {"size": 1}}
    monkeypatch.setattr(type(store), "find", lambda *_, **__: listed)
    with pytest.raises(RunError, match="outside the copy"):
        mirror(URL, cache)
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith("evil")]


def test_a_link_in_the_copy_leads_nowhere_else(store: Any, cache: Path, tmp_path: Path) -> None:
    folder = mirror(URL, cache).path
    (folder / "rollout").rename(tmp_path / "elsewhere")
    (folder / "rollout").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="outside the copy"):
        mirror(URL, cache)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("memory://bucket/none", "holds no files"),
        ("nosuch://bucket/run", "cannot be opened"),
    ],
)
def test_a_url_that_holds_nothing_is_named(store: Any, cache: Path, url: str, named: str) -> None:
    done = align("run", "verify", url)
    assert isinstance(done.exception, AlignError)
    assert url in str(done.exception) and named in str(done.exception)


def test_without_fsspec_one_error_says_how_to_get_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    done = align("run", "show", "s3://bucket/run")
    assert isinstance(done.exception, MissingPackageError)
    assert "pip install 'npu-align[remote]'" in str(done.exception)


@pytest.mark.parametrize(
    "arguments", [("init",), ("prune", "--steps", "1"), ("add", "--step", "1")]
)
def test_a_command_that_writes_takes_no_url(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.touch()
    more = [file] if arguments[0] == "add" else []
    done = align("run", *arguments, URL, *more)
    assert isinstance(done.exception, RunError)
    assert "this command writes" in str(done.exception)
    done = align("run", *arguments, file, *more)
    assert "is a file" in str(done.exception)


def test_a_run_behind_a_url_is_compared_like_one_that_is_here(
    run: Path, store: Any, cache: Path, tmp_path: Path
) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "data": {"critic/rewards/mean": 1.0}}\n')
    store.pipe({f"/bucket/run/{name}": content for name, content in contents(run).items()})
    here, remote = (
        align("report", run, side, "-o", tmp_path / name, "--json")
        for name, side in (("a", run), ("b", URL))
    )
    statuses = [
        [(rung["name"], rung["status"]) for rung in json.loads(done.stdout)["rungs"]]
        for done in (here, remote)
    ]
    assert statuses[0] == statuses[1]
    assert ("curves", "missing") not in statuses[0]
