"""Sketch one step of any training loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch import nn

from dumps.capture.failures import FailureLog
from dumps.capture.sketch.hooks import ModuleHooks
from dumps.capture.sketch.local import Local
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.write import submit_step, write_step
from dumps.capture.tensors import WholeTensors
from dumps.capture.writer import Writer


@contextmanager
def sketched_step(
    model: nn.Module | Sequence[nn.Module],
    folder: Path,
    step: int,
    log: FailureLog,
    *,
    rank: int = 0,
    sequence_first: bool = False,
    local: Sequence[Local] = (),
    writer: Writer | None = None,
    whole: Sequence[str] = (),
) -> Iterator[Recorder]:
    """Sketch what a model computes within, and write it when the step is over.

    Args:
        model: the root, called with input_ids; or all chunks of it that a pipeline stage has.
        folder: of the run.
        log: takes what goes wrong; training goes on.
        local: what the modules of each chunk are, where they are not the whole model's own.
        whole: shell patterns of the modules whose tensors are kept whole besides.
        writer: writes in the background; without it the file is there on leaving.

    Yields:
        The step's recorder, for `dumps.capture.sketch.weights`.
    """
    recorder = Recorder(whole=WholeTensors(whole) if whole else None)
    chunks = [model] if isinstance(model, nn.Module) else list(model)
    with ExitStack() as stack:
        parts: Sequence[Local | None] = local or [None] * len(chunks)
        for chunk, own in zip(chunks, parts, strict=True):
            hooks = ModuleHooks(chunk, recorder, log, sequence_first=sequence_first, local=own)
            stack.callback(hooks.remove)
        yield recorder
    with log.kept("writing sketches"):
        if writer is None:
            write_step(folder, step, rank, recorder)
        else:
            submit_step(writer, step, rank, recorder)
