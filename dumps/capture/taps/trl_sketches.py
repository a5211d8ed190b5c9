"""Sketches of TRL's training steps: from the first loss of a step to its optimizer's step.

Generation and the passes for old and reference log_probs come before that loss, so that the
activations are those of the pass that is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from dumps.capture.plan import What
from dumps.capture.session import Session
from dumps.capture.step_sketches import StepSketches, write_parts
from dumps.capture.taps.trl_loss import loss_begun
from dumps.capture.wrap import After


@dataclass
class _Trained:
    """What this process sketches of its model.

    Args:
        sketches: None before the first loss.
        step: in progress, or 0.
    """

    sketches: StepSketches | None = None
    step: int = 0
    handle: RemovableHandle | None = None


_now = _Trained()


def loss_computed(
    session: Session, self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any
) -> After | None:
    """Look at the model from the first loss of a step on, and at what each loss is of."""
    look_at_model(session, self, model)
    return loss_begun(session, self, inputs)


def look_at_model(session: Session, self: Any, model: Any) -> None:
    """Look at a trainer's model from the first loss of a step on."""
    step, rank = int(self.state.global_step) + 1, int(self.accelerator.process_index)
    if not self.model.training or not session.takes(What.SKETCHES, What.WEIGHTS):
        return
    if step == _now.step or not session.plan.takes_rank(rank):
        return
    if _now.sketches is None:
        _now.sketches = StepSketches(session.log)
        _end(session, model, step - 1, rank)
    _now.step = step
    if session.plan.sketches_step(step):
        plan = session.plan
        with session.sketching("the model"):
            _now.sketches.begin(model, plan.modules, whole=plan.tensors, perturbs=plan.perturbs)


def gradients_whole(session: Session, trainer: Any, model: Any, step: int, rank: int) -> None:
    """Sketch gradients before they are clipped, and the optimizer's step once it is through."""
    sketches = _now.sketches
    if sketches is None or _now.handle is not None:
        return
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate wraps it
    with session.sketching("the gradients"):
        sketched = sketches.update(model, optimizer)

        def stepped(*args: Any) -> None:
            handle, _now.handle = _now.handle, None
            if handle is not None:
                handle.remove()
            with session.sketching("the update"):
                sketched()
            _end(session, model, step, rank)

        _now.handle = optimizer.register_step_post_hook(stepped)


def _end(session: Session, model: torch.nn.Module, step: int, rank: int) -> None:
    """Have a step's sketches written, and those of the weights that the next one begins with."""
    sketches = _now.sketches
    assert sketches is not None
    with session.sketching("the step"):
        if session.plan.sketches_sync(step + 1):
            sketches.record_sync(model, None)
        parts = list(sketches.end(step, rank))
        if parts:
            write_parts(session.writer(f"trl-{rank}"), parts)
