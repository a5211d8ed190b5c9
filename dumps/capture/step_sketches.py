"""Sketches of a training step in any loop: begun, updated, ended, and made into files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dumps.capture.device import copied
from dumps.capture.failures import FailureLog
from dumps.capture.megatron_optimizer import loss_scale, owned_ranges
from dumps.capture.perturb import perturb_embeddings
from dumps.capture.sketch.hooks import ModuleHooks
from dumps.capture.sketch.local import Local
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
from dumps.capture.writer import WriteFile, Writer
from dumps.store.tensor_records import Phase, sketch_path, sync_path

Model = nn.Module | Sequence[nn.Module]
"""The model a process has, or all chunks of it that a pipeline stage has."""


@dataclass
class StepSketches:
    """What one rank sketches: the step in progress, and the weights that the next one begins with.

    Args:
        log: takes what the hooks cannot do.
        local: what each chunk of the model is, where they are not the whole model's own
            (`dumps.capture.sketch.megatron.megatron_parts`).
        step: activations, gradients and updates; None in a step not recorded.
        sync: weights given to the rollout engine; None where they are not recorded.
    """

    log: FailureLog
    local: Sequence[Local] = ()
    step: Recorder | None = None
    sync: Recorder | None = None
    _handles: list[ModuleHooks | RemovableHandle] = field(default_factory=list)

    def begin(
        self,
        model: Model,
        pattern: str | None,
        *,
        outputs: bool = True,
        whole: Sequence[str] = (),
        perturbs: bool = False,
        optimizer: Any = None,
    ) -> None:
        """Look at a model from here on.

        Args:
            pattern: shell pattern of the modules to look at, None for all.
            outputs: whether to look at modules at all, or at parameters alone.
            whole: shell patterns of the modules whose tensors are kept whole besides.
            perturbs: whether its embeddings are moved by one rounding unit.
            optimizer: Megatron's, which knows what the loss is scaled with; gradients of
                activations are recorded without that.
        """
        self.drop()
        self.step = Recorder(whole=WholeTensors(whole) if whole else None)
        patterns = (pattern or "*", *whole)
        scale = loss_scale(optimizer)
        for chunk, own in self._chunks(model):
            if own is not None and scale is not None:
                own = replace(own, gradient_share=own.gradient_share / float(scale))
            if perturbs and (own is None or own.is_first):
                self._handles.append(perturb_embeddings(chunk))
            if outputs:
                hooks = ModuleHooks(chunk, self.step, self.log, patterns, local=own)
                self._handles.append(hooks)

    def expect(self, **said: Tensor) -> None:
        """Say of the next pass what its call does not (`ModuleHooks.expect`)."""
        for handle in self._handles:
            if isinstance(handle, ModuleHooks):
                handle.expect(**said)

    def drop(self) -> None:
        """Take the hooks away and forget the step."""
        for handle in self._handles:
            handle.remove()
        self.step, self._handles = None, []

    def update(self, model: Model, optimizer: Any) -> Callable[[], None]:
        """Sketch the gradients before an optimizer step; return what sketches the step itself.

        In between it holds a copy of what this rank steps.

        Args:
            optimizer: torch's or Megatron's; None where it is not known.
        """
        recorder = self.step
        if recorder is None:
            return lambda: None
        chunks, owned = self._chunks(model), owned_ranges(optimizer)
        scale = loss_scale(optimizer)
        for chunk, own in chunks:
            record_gradients(recorder, chunk, local=own, owned=owned, scale=scale)
        before = [parameters_of(chunk, optimizer) for chunk, _ in chunks]

        def after() -> None:
            for (chunk, own), values in zip(chunks, before, strict=True):
                record_update(recorder, chunk, values, local=own, optimizer=optimizer)
                if optimizer is not None:
                    record_moments(recorder, chunk, optimizer, local=own)
            recorder.update += 1

        return after

    def record_sync(self, model: Model, engine_dtype: torch.dtype | None) -> None:
        """Sketch the weights as they are, and as the engine's dtype rounds them."""
        self.sync = Recorder()
        for chunk, own in self._chunks(model):
            record_parameters(self.sync, chunk, Phase.PARAMETER, local=own)
            if engine_dtype is None:
                continue
            if any(parameter.dtype != engine_dtype for parameter in chunk.parameters()):
                record_parameters(self.sync, chunk, Phase.SENT, engine_dtype, local=own)

    def _chunks(self, model: Model) -> list[tuple[nn.Module, Local | None]]:
        chunks = [model] if isinstance(model, nn.Module) else list(model)
        parts: Sequence[Local | None] = self.local or [None] * len(chunks)
        return list(zip(chunks, parts, strict=True))

    def end(self, step: int, rank: int) -> Iterator[Part]:
        """End a step: yield what it was, and the weights that the next one begins with."""
        ended = self.step
        self.drop()
        if ended is not None and ended.sums:
            yield Part(sketch_path(Path(), step, rank), step, rank, ended)
        yield from self.end_sync(step + 1, rank)

    def end_sync(self, step: int, rank: int) -> Iterator[Part]:
        """Yield the weights that a step begins with, once `record_sync` has sketched them."""
        sync, self.sync = self.sync, None
        if sync is not None and sync.sums:
            yield Part(sync_path(Path(), step, rank), step, rank, sync)


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


def write_parts(writer: Writer, parts: Sequence[Part]) -> None:
    """Have parts written that go with no other file of their step."""
    host = copied({name: tensor for part in parts for name, tensor in part.tensors().items()})
    files = {path: write for part in parts for path, write in part.writes(host).items()}
    writer.submit(None, lambda: files)
