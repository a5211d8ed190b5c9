"""Take a run folder back to the end of a step, so that continuing writes each step once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from dumps.store.atomic import write_atomic

METRICS, TIMINGS, ORDER, CONSOLE = "metrics.jsonl", "timings.jsonl", "order.jsonl", "console.log"
_STEP_LINE = re.compile(r"step:(\d+) - ")


def rewind(out: Path, step: int) -> None:
    """Remove every file and line of a later step, and lines a killed run left half-written."""
    for folder in ("rollout", "trainer_inputs", "updates", "sketches/rank_*"):
        for file in out.glob(f"{folder}/[0-9]*"):
            if int(file.stem) > step:
                file.unlink()
    for saved in (out / "checkpoints").glob("*global_step_*"):
        if saved.name.startswith(".") or int(saved.name.rpartition("_")[2]) > step:
            shutil.rmtree(saved)
    for name in (METRICS, TIMINGS, ORDER):
        _keep_lines(out / name, lambda line: _step_of(line) <= step)
    _keep_lines(out / CONSOLE, lambda line: _is_console_line_until(line, step))
    shutil.rmtree(out / "tensorboard", ignore_errors=True)


def _keep_lines(path: Path, keep: Callable[[str], bool]) -> None:
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        write_atomic(path, "".join(line for line in lines if line.endswith("\n") and keep(line)))


def _step_of(line: str) -> int:
    return int(json.loads(line)["step"])


def _is_console_line_until(line: str, step: int) -> bool:
    found = _STEP_LINE.match(line)
    return found is None or int(found[1]) <= step
