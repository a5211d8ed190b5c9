"""One run's critic: its first updates, and the bound of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, islice

from align.config.normalise import effective
from align.core.finding import Side
from align.objective.aggregate import LossAggregation
from align.referee.critic_updates import CriticUpdate, critic_updates
from dumps.store.run_data import RunData

_STEPS = 8


@dataclass(frozen=True, slots=True)
class Critic:
    """One run's critic."""

    side: Side
    run: RunData
    updates: tuple[CriticUpdate, ...]
    clip_range: float | None

    def of_step(self, step: int) -> list[CriticUpdate]:
        """Return a step's updates."""
        return [update for update in self.updates if update.step == step]


def critic_of(side: Side, run: RunData) -> Critic:
    """Read a critic; without updates where none is recorded."""
    return Critic(side, run, _first_updates(run), _clip_range(run))


def _first_updates(run: RunData) -> tuple[CriticUpdate, ...]:
    """Return the updates of the first recorded steps: two critics part there, or by rounding."""
    by_step = groupby(critic_updates(run), key=lambda update: update.step)
    return tuple(update for _, own in islice(by_step, _STEPS) for update in own)


def _clip_range(run: RunData) -> float | None:
    """Return critic.cliprange_value; None where it is not known, or the loss is another one."""
    values = effective(run.configs, run.run.manifest).values
    clip, mode = values.get("critic.clip_range"), values.get("critic.loss_agg_mode")
    if clip is None or not isinstance(clip.value, int | float):
        return None
    if mode is not None and mode.value != LossAggregation.TOKEN_MEAN.value:
        return None
    return float(clip.value)
