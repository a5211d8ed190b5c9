"""Our sketch capture under the harness that measures msprobe's dumps.

    python bench_msprobe.py dump --work DIR --levels L0 --tasks statistics \
        --adapter benchmarks/sketch_adapter.py:Sketches

Records every module's output and its gradient, and the gradient of every parameter.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from torch import nn

from dumps.capture.failures import FailureLog
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients


class Sketches:
    """One step at a time, between `start` and `stop`."""

    name = "align sketches"

    def __init__(self, out_dir: str, level: str, task: str) -> None:
        self._out, self._step = Path(out_dir), 0

    def start(self, model: nn.Module) -> None:
        """Put the hooks on."""
        log = FailureLog(self._out, "benchmark")
        self._stack, self._model = ExitStack(), model
        context = sketched_step(model, self._out, self._step, log)
        self._recorder: Recorder = self._stack.enter_context(context)

    def stop(self) -> None:
        """Sketch the parameters' gradients, take the hooks off and write the step."""
        record_gradients(self._recorder, self._model)
        self._stack.close()
        self._step += 1

    @staticmethod
    def compare_cmd(target_dir: str, golden_dir: str, out_dir: str) -> list[str]:
        """Return the command that compares two captures."""
        return ["align", "layers", "diff", golden_dir, target_dir, "--json"]
