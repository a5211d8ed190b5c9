"""Commands as a user types them: exit codes, streams, one line for what cannot be used."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ALIGN = str(Path(sys.executable).with_name("align"))
EXAMPLES = Path(__file__).parents[2] / "align" / "examples"
LINE = "step:{step} - critic/score/mean:0.5 - actor/lr:1e-06\n"


def align(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [ALIGN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def write_log(path: Path, steps: int = 3) -> Path:
    path.write_text("".join(LINE.format(step=step) for step in range(1, steps + 1)))
    return path


def test_a_divergence_exits_1_and_fail_on_never_exits_0(tmp_path: Path) -> None:
    sides = EXAMPLES / "reference", EXAMPLES / "candidate"
    assert align("config", "diff", *sides).returncode == 1
    assert align("config", "diff", *sides, "--fail-on", "never").returncode == 0


def test_a_run_against_itself_exits_0(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log")
    done = align("report", log, log, "-o", tmp_path / "out")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "verdict: aligned" in done.stderr


def test_nothing_in_common_exits_3(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log")
    config = EXAMPLES / "reference" / ".hydra" / "config.yaml"
    done = align("report", log, config, "-o", tmp_path / "out")
    assert done.returncode == 3
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "nowhere", "nowhere"), "nowhere: does not exist"),
        (("report", ".", "."), "no file at all"),
        (("report",), "give REF and CAND"),
        (("report", "--from", "nowhere.json"), "nowhere.json"),
        (("run", "show", "nowhere"), "nowhere: does not exist"),
        (("run", "init", "nowhere"), "nowhere: is not a folder"),
        (("nonsense",), "No such command"),
    ],
)
def test_what_cannot_run_exits_2_and_says_where(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = align(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_json_goes_to_stdout_alone_and_draws_the_same_report_again(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log")
    first = align("report", log, log, "-o", tmp_path / "one", "--json")
    assert json.loads(first.stdout)["schema_version"] == 1
    again = align("report", "--from", tmp_path / "one" / "report.json", "-o", tmp_path / "two")
    assert again.returncode == 0
    for name in ("report.html", "report.md", "report.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_files_beside_the_folder_are_added_to_a_side(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log")
    config = EXAMPLES / "reference" / ".hydra" / "config.yaml"
    added = ("--reference-file", config, "--candidate-file", config)
    done = align("report", log, log, *added, "-o", tmp_path / "out", "--json")
    status = {rung["name"]: rung["status"] for rung in json.loads(done.stdout)["rungs"]}
    assert status["config"] == "aligned"


def test_a_manifest_states_what_files_do_not(tmp_path: Path) -> None:
    write_log(tmp_path / "a.log")
    dry = align("run", "init", tmp_path, "--device", "npu", "--dry-run")
    assert json.loads(dry.stdout)["device"] == "npu"
    assert not (tmp_path / "align-run.json").exists()
    assert align("run", "init", tmp_path, "--device", "npu").returncode == 0
    assert align("run", "init", tmp_path, "--device", "cuda").returncode == 2
    shown = json.loads(align("run", "show", tmp_path, "--json").stdout)
    assert shown["device"] == "npu"
    assert shown["last_step"] == 3


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log")
    command = f"{ALIGN} run show {log} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def hears_interrupts() -> None:
    """Undo what a shell does to a job in the background, where these tests may run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_no_half_written_file(tmp_path: Path) -> None:
    log = write_log(tmp_path / "big.log", steps=400_000)
    out = tmp_path / "out"
    process = subprocess.Popen(
        [ALIGN, "report", str(log), str(log), "-o", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_interrupts,
    )
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not out.exists() or not list(out.iterdir())


def test_a_terminal_shows_progress_and_a_pipe_shows_none(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", steps=20_000)
    command = [ALIGN, "report", str(log), str(log), "-o", str(tmp_path / "out")]
    piped = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "\x1b[" not in piped.stderr
    parent, child = pty.openpty()
    process = subprocess.Popen(command, stderr=child, stdout=subprocess.DEVNULL)
    os.close(child)
    shown = b""
    try:
        while chunk := os.read(parent, 65536):
            shown += chunk
    except OSError:  # the terminal closes with the process
        pass
    process.wait()
    assert b"\x1b[" in shown
    assert b"curves" in shown or b"reading" in shown
