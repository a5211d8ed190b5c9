"""verl's rollout engines: the weights they hold once new ones are loaded.

Only the first replica is recorded; the others are given the same weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dumps.capture.engine_weights import record_engine
from dumps.capture.session import Session
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.step_sketches import Part, write_parts
from dumps.capture.sync_step import announced_step
from dumps.capture.wrap import After
from dumps.store.run_index import ENGINE
from dumps.store.tensor_records import engine_path


def vllm_loaded(
    session: Session,
    self: Any,
    peft_config: Any = None,
    base_sync_done: bool = False,
    *args: Any,
    **kwargs: Any,
) -> After | None:
    """Sketch the model of a vLLM worker after a sync; adapters on their own leave it as it was."""
    if peft_config and base_sync_done:
        return None

    def after(result: Any) -> None:
        runner = self.model_runner
        parallel = runner.vllm_config.parallel_config
        ranks = int(parallel.tensor_parallel_size)
        replica = int(os.environ.get("VERL_REPLICA_RANK", "0"))
        config = runner.vllm_config.model_config.hf_config.to_dict()
        record_loaded(
            session, runner.model, config, replica=replica, rank=int(self.rank) % ranks, ranks=ranks
        )

    return after


def record_loaded(
    session: Session,
    model: nn.Module,
    config: Mapping[str, Any],
    *,
    replica: int = 0,
    rank: int = 0,
    ranks: int = 1,
) -> None:
    """Sketch what an engine's model holds, if the step that begins now is recorded.

    An engine that verl does not have calls this after it has loaded weights.

    Args:
        config: the model's ``config.json``.
        rank, ranks: of the replica's tensor-parallel group.
    """
    step = announced_step(session.plan.run)
    if replica or step is None or not session.plan.sketches_sync(step):
        return
    recorder = Recorder()
    record_engine(recorder, model, config, rank=rank, ranks=ranks)
    if not recorder.sums:
        return
    name = f"{ENGINE}-{rank}"
    writer = session.writer(name)
    write_parts(writer, [Part(engine_path(Path(), step, rank), step, rank, recorder)])
    session.note_time(name, step)
    writer.drain()  # engines are ended without notice
