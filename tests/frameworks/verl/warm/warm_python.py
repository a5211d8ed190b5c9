"""A folder with a `python` whose processes begin with torch and its like imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent


@contextmanager
def warm_python(folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    """Start a server and give a `python` in an empty folder, to be used within the context.

    Args:
        environment: that the imported packages are to see.
    """
    name = f"warm-python-{os.getpid()}"
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {HERE / "client.py"} {name} "$@"\n')
    python.chmod(0o755)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert server.stdin is not None and server.stdout is not None
    try:
        assert server.stdout.readline() == "ready\n", (folder / "server.log").read_text()
        yield python
    finally:
        server.stdin.close()
        server.wait(60)
