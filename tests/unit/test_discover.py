"""What a folder holds is found by content."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from align.cli.main import cli
from align.core.errors import RunError
from align.core.run import ArtifactKind, RunManifest
from dumps.store.discover import discover
from dumps.store.manifest import FILE_NAME, read_manifest, write_manifest

STEP_LINE = "step:1 - actor/lr:1e-06 - critic/score/mean:0.5 - prompt_length/mean:24.0\n"


@pytest.mark.parametrize("name", [" ", "训练日志", "run+a=1", "noext", "x.out", "README.md"])
def test_a_console_log_is_recognised_under_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("(TaskRunner pid=1) " + STEP_LINE, encoding="utf-8")
    run = discover([tmp_path])
    assert [a.format for a in run.of_kind(ArtifactKind.METRICS)] == ["verl_console"]
    assert run.unknown == ()


def test_a_file_of_no_known_format_is_listed_and_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(gzip.compress(STEP_LINE.encode()))
    (tmp_path / "rollout.jsonl").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", encoding="utf-8"
    )
    (tmp_path / "empty").touch()
    (tmp_path / "cut.jsonl").write_bytes("奖励".encode()[:-1])
    (tmp_path / "linked.json").write_text("../tokenizer/linked.json", encoding="utf-8")
    run = discover([tmp_path])
    assert run.artifacts == ()
    assert {file.path.name: file.looks_like for file in run.unknown} == {
        "train.log": "gzip data",
        "rollout.jsonl": "Git-LFS pointer",
        "empty": "empty file",
        "cut.jsonl": "text that ends in the middle of a UTF-8 character",
        "linked.json": "git symbolic link",
    }


def test_a_file_of_no_known_format_comes_with_its_remedy_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(gzip.compress(STEP_LINE.encode()))
    (tmp_path / "b.txt").write_text("../text with blanks, thus no path", encoding="utf-8")
    packed, plain = discover([tmp_path]).unknown
    assert str(packed) == f"{tmp_path / 'a.log'}: gzip data; unpack it with `gunzip`"
    assert str(plain) == f"{tmp_path / 'b.txt'}: text of no known format"


def test_a_path_that_does_not_exist_is_one_line_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist; give a run folder or a log file"):
        discover([tmp_path / "nowhere"])


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="pipe or device"):
        discover([tmp_path / "pipe"])
    assert discover([tmp_path]).artifacts == ()


def test_an_empty_folder_is_a_run_without_artifacts(tmp_path: Path) -> None:
    run = discover([tmp_path])
    assert (run.artifacts, run.unknown) == ((), ())


def test_files_are_added_to_a_folder_once(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(STEP_LINE, encoding="utf-8")
    run = discover([tmp_path, log])
    assert len(run.of_kind(ArtifactKind.METRICS)) == 1


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert discover([tmp_path / "run"]).artifacts == ()


def test_a_manifest_survives_writing_and_reading(tmp_path: Path) -> None:
    manifest = RunManifest("verl", "0.9.1", "npu", "候选", {"torch": "2.7.1"}, ("备注",))
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert discover([tmp_path]).manifest == manifest


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"schema_version": 9}', '{"schema_version": 1, "device": 3}']
)
def test_a_broken_manifest_names_the_file_and_the_fix(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=r"align-run\.json.*align run init --force"):
        discover([tmp_path])


def test_force_replaces_a_broken_manifest_and_keeps_what_a_readable_one_states(
    tmp_path: Path,
) -> None:
    (tmp_path / FILE_NAME).write_text("{", encoding="utf-8")
    command = ["run", "init", str(tmp_path), "--device", "npu"]
    refused = CliRunner().invoke(cli, command)
    assert isinstance(refused.exception, RunError)
    assert CliRunner().invoke(cli, [*command, "--name", "a", "--force"]).exit_code == 0
    assert read_manifest(tmp_path) == RunManifest(device="npu", name="a")
    again = ["run", "init", str(tmp_path), "--device", "cuda", "--force"]
    assert CliRunner().invoke(cli, again).exit_code == 0
    assert read_manifest(tmp_path) == RunManifest(device="cuda", name="a")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    from dumps.store.atomic import write_atomic

    target = tmp_path / "report.json"
    write_atomic(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(target, "new \ud800")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
