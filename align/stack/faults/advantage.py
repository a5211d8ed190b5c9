"""The same scores become other advantages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from align.core.rung import Rung
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.stack.batch import TrainBatch
    from align.stack.config import StackConfig
    from align.stack.pipeline import Pipeline


def groups_by_neighbour(pipeline: Pipeline) -> Pipeline:
    """Group the i-th responses of all prompts, as if rows came as a b a b and not as a a b b."""

    def advantages(batch: TrainBatch, config: StackConfig) -> TrainBatch:
        n = config.rollout.n
        uid = tuple(f"group-{i % n}" for i in range(len(batch.uid)))
        return replace(pipeline.advantages(replace(batch, uid=uid), config), uid=batch.uid)

    return replace(pipeline, advantages=advantages)


FAULTS = (
    Fault(
        "wrong_groups",
        Rung.ADVANTAGE,
        "Responses are compared with those to other prompts: the group index is wrong.",
        "report 63",
        "advantage.groups",
        ("trainer_inputs",),
        change=groups_by_neighbour,
    ),
)
