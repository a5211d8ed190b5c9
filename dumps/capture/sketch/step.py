"""Sketch one step of any training loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from dumps.capture.failures import FailureLog
from dumps.capture.sketch.hooks import ModuleHooks
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.write import write_step


@contextmanager
def sketched_step(
    model: nn.Module,
    folder: Path,
    step: int,
    log: FailureLog,
    *,
    rank: int = 0,
    sequence_first: bool = False,
) -> Iterator[Recorder]:
    """Sketch what a model computes within, and write it when the step is over.

    Args:
        model: the root, called with input_ids.
        folder: of the run.
        log: takes what goes wrong; training goes on.

    Yields:
        The step's recorder, for `dumps.capture.sketch.weights`.
    """
    recorder = Recorder()
    hooks = ModuleHooks(model, recorder, log, sequence_first=sequence_first)
    try:
        yield recorder
    finally:
        hooks.remove()
    with log.kept("writing sketches"):
        write_step(folder, step, rank, recorder)
