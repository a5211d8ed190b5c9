"""Sketch the model in the first steps and the last: activations, gradients, weights, updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from align.stack import sharding
from dumps.capture.failures import FailureLog
from dumps.capture.perturb import perturb_embeddings
from dumps.capture.plan import plan_of_environment
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import (
    parameters_of,
    record_gradients,
    record_moments,
    record_parameters,
    record_update,
)
from dumps.store.tensor_records import Phase

if TYPE_CHECKING:
    from align.stack.pipeline import Model, Pipeline

# Where the warm-up starts at 0, step 2 is the first with an update; step 3's engine tells weights
# that are one step old from those of the start.
FIRST_STEPS = (1, 2, 3)


class Sketches:
    """Records the steps of one run.

    Args:
        out: the run folder.
        last_step: recorded besides the first ones.
        is_on: whether anything is recorded at all.
    """

    def __init__(self, out: Path, last_step: int, *, is_on: bool) -> None:
        self._out, self._is_on = out, is_on
        self._steps = {*FIRST_STEPS, last_step}
        self._log = FailureLog(out, f"rank {sharding.rank()}")
        self._plan = plan_of_environment()
        self._recorder: Recorder | None = None
        self._model: nn.Module | None = None

    def of(self, pipeline: Pipeline) -> Pipeline:
        """Return the pipeline whose stages are looked at while a step is recorded."""
        return replace(
            pipeline,
            sync_weights=self._sync_weights(pipeline),
            reduce_gradients=self._reduce_gradients(pipeline),
            optimizer_step=self._optimizer_step(pipeline),
        )

    @contextmanager
    def step(self, model: nn.Module, step: int) -> Iterator[None]:
        """Record the step within, if it is one of those to record."""
        if not self._takes(step):
            yield
            return
        rank, plan = sharding.rank(), self._plan
        whole = plan.tensors if plan is not None and plan.takes_rank(rank) else ()
        with ExitStack() as stack:
            if plan is not None and plan.perturbs:
                with self._log.kept("perturbing embeddings"):
                    stack.callback(perturb_embeddings(model).remove)
            context = sketched_step(model, self._out, step, self._log, rank=rank, whole=whole)
            self._recorder, self._model = stack.enter_context(context), model
            try:
                yield
            finally:
                self._recorder = None

    def _takes(self, step: int) -> bool:
        """Tell whether a step is recorded: by itself, or because a capture asks for it."""
        asked = self._plan is not None and self._plan.sketches_step(step)
        return asked or (self._is_on and step in self._steps)

    def _sync_weights(self, pipeline: Pipeline) -> Callable[[Model, Model], None]:
        def sync_weights(trainer_model: Model, rollout_model: Model) -> None:
            pipeline.sync_weights(trainer_model, rollout_model)
            if self._recorder is not None:
                with self._log.kept("sketch of the weights"):
                    record_parameters(self._recorder, trainer_model, Phase.PARAMETER)
                    record_parameters(self._recorder, rollout_model, Phase.ENGINE)

        return sync_weights

    def _reduce_gradients(self, pipeline: Pipeline) -> Callable[[nn.Module], None]:
        def reduce_gradients(model: nn.Module) -> None:
            pipeline.reduce_gradients(model)
            if self._recorder is not None:
                with self._log.kept("sketch of the gradients"):
                    record_gradients(self._recorder, model)

        return reduce_gradients

    def _optimizer_step(self, pipeline: Pipeline) -> Callable[[torch.optim.Optimizer, float], None]:
        def optimizer_step(optimizer: torch.optim.Optimizer, lr: float) -> None:
            if self._recorder is None or self._model is None:
                pipeline.optimizer_step(optimizer, lr)
                return
            before = {}
            with self._log.kept("copy of the weights"):
                before = parameters_of(self._model)
            pipeline.optimizer_step(optimizer, lr)
            with self._log.kept("sketch of the update"):
                record_update(self._recorder, self._model, before)
                record_moments(self._recorder, self._model, optimizer)
            self._recorder.update += 1

        return optimizer_step
