"""msprobe's PrecisionDebugger as what looks at modules, for a capture with `--backend msprobe`.

It dumps statistics of module inputs, outputs and gradients (its level L0) into ``RUN/msprobe``, a
folder ``step{n}`` a training step. It is no part of what a capture promises: it patches torch
while it looks, slows training, and changed gradients by up to 9e-7 relative where we measured it.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from align.core.errors import MissingPackageError, RunError
from dumps.capture.plan import CapturePlan
from dumps.store.atomic import write_atomic
from dumps.store.run_index import append_file, append_whole

FOLDER = "msprobe"


def config_file(run: Path) -> Path:
    """Return where the configuration for msprobe lies."""
    return run / FOLDER / "config.json"


def prepare(plan: CapturePlan) -> None:
    """Write the configuration before a run begins.

    Raises:
        MissingPackageError: msprobe is not installed.
        RunError: A pattern of modules is given, which msprobe's level L0 does not select by.
    """
    if importlib.util.find_spec("msprobe") is None:
        raise MissingPackageError(
            where="--backend msprobe",
            problem="needs msprobe, which is not installed",
            fix="pip install mindstudio-probe, in the environment of every node that trains",
        )
    if plan.modules:
        raise RunError(
            where="--modules",
            problem="does not go together with --backend msprobe, which dumps every module",
            fix="leave one of them out",
        )
    content = {
        "task": "statistics",
        "dump_path": str(plan.run / FOLDER),
        "rank": list(plan.ranks),
        "step": [],
        "level": "L0",
        "async_dump": False,
        "statistics": {
            "scope": [],
            "list": [],
            "tensor_list": [],
            "data_mode": ["all"],
            "summary_mode": "statistics",
        },
    }
    path = config_file(plan.run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(content, indent=2) + "\n")


@dataclass
class Msprobe:
    """The one debugger of this process.

    Args:
        run: the run folder.
        step: that it looks at; None while it does not.
    """

    run: Path
    step: int | None = None

    def start(self, model: Any, step: int) -> None:
        """Begin to look at a model, at a training step numbered from 1; once a step."""
        if self.step is None:
            debugger = self._debugger()
            debugger.set_init_step(step)  # its folder gets our number
            debugger.start(model=model)
            self.step = step

    def stop(self, rank: int) -> None:
        """Look no more, and enter the files of the step into the index."""
        if self.step is None:
            return
        debugger, step = self._debugger(), self.step
        self.step = None
        debugger.stop()
        debugger.step()  # writes
        folder, writer = self.run / FOLDER / f"step{step}", f"msprobe-{rank}"
        for name in (f"rank{rank}", f"proc{os.getpid()}"):  # with and without process group
            for path in sorted((folder / name).glob("*.json")):
                append_file(self.run, writer, path, step)
        append_whole(self.run, writer, step)

    def _debugger(self) -> Any:
        from msprobe.pytorch import PrecisionDebugger

        return PrecisionDebugger(config_path=str(config_file(self.run)))  # the same object always
