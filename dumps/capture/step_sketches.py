"""Sketches of a training step in any loop: begun, updated, ended, and made into files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dumps.capture.failures import FailureLog
from dumps.capture.perturb import perturb_embeddings
from dumps.capture.sketch.hooks import ModuleHooks
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.weights import (
    parameters_of,
    record_gradients,
    record_moments,
    record_parameters,
    record_update,
)
from dumps.capture.sketch.write import stacked, whole_files, write_file
from dumps.capture.tensors import WholeTensors
from dumps.capture.writer import WriteFile
from dumps.store.tensor_records import Phase, sketch_path, sync_path


@dataclass
class StepSketches:
    """What one rank sketches: the step in progress, and the weights that the next one begins with.

    Args:
        log: takes what the hooks cannot do.
        step: activations, gradients and updates; None in a step not recorded.
        sync: weights given to the rollout engine; None where they are not recorded.
    """

    log: FailureLog
    step: Recorder | None = None
    sync: Recorder | None = None
    _hooks: ModuleHooks | None = None
    _perturbed: RemovableHandle | None = None

    def begin(
        self,
        model: nn.Module,
        pattern: str | None,
        *,
        outputs: bool = True,
        whole: Sequence[str] = (),
        perturbs: bool = False,
    ) -> None:
        """Look at a model from here on.

        Args:
            pattern: shell pattern of the modules to look at, None for all.
            outputs: whether to look at modules at all, or at parameters alone.
            whole: shell patterns of the modules whose tensors are kept whole besides.
            perturbs: whether its embeddings are moved by one rounding unit.
        """
        self.drop()
        if perturbs:
            self._perturbed = perturb_embeddings(model)
        self.step = Recorder(whole=WholeTensors(whole) if whole else None)
        if outputs:
            self._hooks = ModuleHooks(model, self.step, self.log, (pattern or "*", *whole))

    def drop(self) -> None:
        """Take the hooks away and forget the step."""
        if self._hooks is not None:
            self._hooks.remove()
        if self._perturbed is not None:
            self._perturbed.remove()
        self.step = self._hooks = self._perturbed = None

    def update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> Callable[[], None]:
        """Sketch the gradients before an optimizer step; return what sketches the step itself.

        In between it holds a copy of the parameters of this rank.
        """
        recorder = self.step
        if recorder is None:
            return lambda: None
        record_gradients(recorder, model)
        before = parameters_of(model)

        def after() -> None:
            record_update(recorder, model, before)
            if optimizer is not None:
                record_moments(recorder, model, optimizer)
            recorder.update += 1

        return after

    def record_sync(self, model: nn.Module, engine_dtype: torch.dtype | None) -> None:
        """Sketch the weights as they are, and as the engine's dtype rounds them."""
        self.sync = Recorder()
        record_parameters(self.sync, model, Phase.PARAMETER)
        if engine_dtype is not None and any(p.dtype != engine_dtype for p in model.parameters()):
            record_parameters(self.sync, model, Phase.SENT, engine_dtype)

    def end(self, step: int, rank: int) -> Iterator[Part]:
        """End a step: yield what it was, and the weights that the next one begins with."""
        ended, sync = self.step, self.sync
        self.drop()
        self.sync = None
        if ended is not None and ended.sums:
            yield Part(sketch_path(Path(), step, rank), step, rank, ended)
        if sync is not None and sync.sums:
            yield Part(sync_path(Path(), step + 1, rank), step + 1, rank, sync)


@dataclass(frozen=True)
class Part:
    """One file to be.

    Args:
        path: below the run folder.
    """

    path: Path
    step: int
    rank: int
    recorder: Recorder

    def tensors(self) -> dict[str, Tensor]:
        """Return what has to get to the host, by names of its own."""
        made = stacked(self.recorder)
        return {f"{self.path.as_posix()}:{name}": tensor for name, tensor in made.items()}

    def writes(self, on_host: Mapping[str, Tensor]) -> dict[str, WriteFile]:
        """Return what writes the file, and that of whole tensors, by their paths."""
        prefix = f"{self.path.as_posix()}:"
        own = {n.removeprefix(prefix): t for n, t in on_host.items() if n.startswith(prefix)}
        return {
            self.path.as_posix(): lambda path: write_file(
                path, own, self.step, self.rank, self.recorder
            ),
            **whole_files(self.recorder, self.step, self.rank),
        }
