"""Where msprobe looks on: the actor's update, in whichever framework trains."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from dumps.capture.msprobe_backend import Msprobe
from dumps.capture.session import Session
from dumps.capture.taps import verl_worker
from dumps.capture.wrap import After


def verl_update(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """Look at the update of verl's actor: an engine's module (0.8 and later), or its own."""
    actor = getattr(self, "actor", None)
    module = getattr(getattr(actor, "engine", None), "module", None)
    step = verl_worker.step_in_progress()
    return _update(session, self.actor_module_fsdp if module is None else module, step)


def mindspeed_rl_update(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """Look at the update of MindSpeed-RL's hybrid worker."""
    return _update(session, self.model, int(self.iteration) + 1)


def trl_loss(session: Session, self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Look from TRL's first loss of a step on: what it generates comes before."""
    if model.training:
        _start(session, model, int(self.state.global_step) + 1)


def trl_step(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """Look no more after TRL's last backward pass before an update."""

    def after(result: Any) -> None:
        if self.accelerator.sync_gradients:
            _msprobe(session).stop(_rank())

    return after


def _update(session: Session, model: Any, step: int) -> After:
    _start(session, model, step)

    def after(result: Any) -> None:
        _msprobe(session).stop(_rank())

    return after


def _start(session: Session, model: Any, step: int) -> None:
    if session.plan.takes_step(step) and session.plan.takes_rank(_rank()):
        _msprobe(session).start(model, step)


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


@cache
def _msprobe(session: Session) -> Msprobe:
    return Msprobe(session.plan.run)
