"""The `python` of verl's runs does as a new interpreter does, with torch imported already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed")

SAYS = """
import json, os, sys
imported = [name for name in ("torch", "ray", "verl", "dumps", "marked") if name in sys.modules]
print(json.dumps([sys.argv, sys.path[0], os.getcwd(), os.environ["SAID"], imported]))
sys.exit(int(os.environ["SAID"]))
"""


@pytest.fixture
def warm(python: Path | None) -> Path:
    if python is None:
        pytest.skip("needs Linux")
    return python


@pytest.mark.parametrize("as_module", [True, False])
def test_a_script_finds_arguments_folder_environment_and_sitecustomize(
    warm: Path, tmp_path: Path, as_module: bool
) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/sitecustomize.py").write_text("import marked")
    (tmp_path / "startup/marked.py").touch()
    done = subprocess.run(
        [str(warm), "-u", *(["-m", "says"] if as_module else ["says.py"]), "-u", "two words"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "startup"), "SAID": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    argv, first, folder, said, imported = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (7, "")
    assert Path(argv[0]).name == "says.py" and argv[1:] == ["-u", "two words"]
    assert first == folder == str(tmp_path) and said == "7"
    assert imported == ["torch", "marked"]


def test_an_exception_is_told_as_python_tells_it(warm: Path, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import atexit\natexit.register(print, 'bye')\n1 / 0\n")
    done = subprocess.run(
        [str(warm), str(tmp_path / "fails.py")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "bye\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_killed_command_takes_its_process_along(warm: Path, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(
        "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    client = subprocess.Popen(
        [str(warm), str(tmp_path / "waits.py")], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    client.send_signal(signal.SIGKILL)
    client.wait()
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()
