"""TensorBoard event files of a run, where tensorboard is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventFiles:
    """A writer that first repeats the steps a resumed run has kept."""

    def __init__(self, folder: Path, metrics: Path) -> None:
        self._writer: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))
            self._replay(metrics)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a step."""
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()

    def _replay(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            row = json.loads(line)
            self.write(row["step"], row["data"])
