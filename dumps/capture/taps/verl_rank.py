"""What one rank of verl sees of the step in progress: of its actor, and of its critic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from dumps.capture.session import Session
from dumps.capture.step_sketches import Model, Part, StepSketches
from dumps.capture.sync_step import announce_step
from dumps.capture.update_record import UpdateRecord

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


@dataclass
class Rank:
    """This process's rank.

    Args:
        step: in progress, numbered from 1.
        phase: whose forward pass runs, such as "actor.train".
        ulysses: of the group whose ranks share sequences.
        optimizer: the actor's, None where it is not known.
        sketches: None where the plan asks for none.
        is_read_as_sent: weights cannot be read before they are sent (Megatron, whose parameters may
            be away until then).
        engine_dtypes: of the rollout engine that waits for weights, one or none.
        has_rows: its log_probs and losses are recorded; other ranks of its model-parallel group
            compute the same, or none.
        begins_micro_batch: the model's last chunk is about to train on another micro-batch.
        is_told: the log says what is not recorded.
        terms: of the loss that are still to be summed for this micro-batch.
        critic: what the critic, if any, trains on in this process.
    """

    step: int = 1
    phase: str = ""
    module: Model | None = None
    optimizer: Any = None
    ulysses: int = 1
    sketches: StepSketches | None = None
    is_read_as_sent: bool = False
    engine_dtypes: tuple[torch.dtype | None, ...] = ()
    has_rows: bool = True
    begins_micro_batch: bool = False
    is_told: bool = False
    record: UpdateRecord = field(default_factory=UpdateRecord)
    critic: UpdateRecord = field(default_factory=UpdateRecord)
    terms: list[str] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0

    @property
    def name(self) -> str:
        return f"actor-{self.rank}"

    def end_sketches(self, session: Session, rollout_worker: Any) -> list[Part]:
        """Return the sketches of the step that ends, and look at the next one.

        Args:
            rollout_worker: verl's, whose rollout engine is given the weights now; None where none
                is known.
        """
        sketches, step = self.sketches, self.step
        if sketches is None or self.module is None:
            return []
        plan, following = session.plan, step + 1
        with session.sketching("the weights"):
            takes_rank = plan.takes_rank(self.rank)
            if rollout_worker is not None and plan.sketches_sync(following) and takes_rank:
                dtype = engine_dtype(rollout_worker)
                if self.is_read_as_sent:
                    self.engine_dtypes = (dtype,)
                else:
                    sketches.record_sync(self.module, dtype)
            parts = list(sketches.end(step, self.rank))
            announce_step(plan.run, following)
            if plan.sketches_step(following) and takes_rank:
                if self.ulysses > 1:
                    session.log.write("no sketch of activations: ranks share sequences (Ulysses)")
                sketches.begin(
                    self.module,
                    plan.modules,
                    outputs=self.ulysses == 1,
                    whole=plan.tensors,
                    perturbs=plan.perturbs,
                    optimizer=self.optimizer,
                )
            return parts
        return []

    def weights_are_read(self) -> list[Part]:
        """Return the sketches of the weights that are on their way to the engine, if it waits."""
        (dtype, *_), self.engine_dtypes = self.engine_dtypes, ()
        if self.sketches is None or self.module is None:
            return []
        self.sketches.record_sync(self.module, dtype)
        return list(self.sketches.end_sync(self.step, self.rank))


def engine_dtype(rollout_worker: Any) -> torch.dtype | None:
    """Return the dtype that the rollout engine is configured with."""
    name = str(rollout_worker.config.rollout.dtype)
    return getattr(torch, _DTYPES.get(name, name), None)
