"""Sketches of MindSpeed-RL's actor, and of the vLLM engine that is given its weights.

Actor and engine share a process: before it generates, a rank puts its Megatron weights together
anew as the engine's (resharding). The trainer's are read just before, the engine's just after.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from align.core.errors import ConfigError
from align.layout.sizes import sizes_of
from dumps.capture.engine_weights import record_engine
from dumps.capture.session import Session
from dumps.capture.sketch.megatron import megatron_parts
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.step_sketches import Part, StepSketches, write_parts
from dumps.store.tensor_records import engine_path


@dataclass
class ActorSketches:
    """What is sketched on one rank.

    Args:
        chunks: the actor's model parts, one a virtual pipeline stage.
        optimizer: Megatron's.
        config: of the Hugging Face model that actor and engine are of (``config.json``).
        sees_outputs: whether modules are looked at, or parameters alone.
        sees_syncs: whether the weights given to the engine can be told apart by the layout rules.
        synced: the last step whose weights were recorded.
    """

    chunks: Sequence[nn.Module]
    optimizer: Any
    config: Mapping[str, Any]
    sketches: StepSketches
    rank: int
    sees_outputs: bool = True
    sees_syncs: bool = True
    synced: int = 0

    def begin(self, session: Session, step: int) -> None:
        """Look at the actor from here on, if this step is sketched."""
        plan = session.plan
        if plan.sketches_step(step) and plan.takes_rank(self.rank):
            self.sketches.begin(
                self.chunks,
                plan.modules,
                outputs=self.sees_outputs,
                whole=plan.tensors,
                perturbs=plan.perturbs,
                optimizer=self.optimizer,
            )

    def expect(self, batch: Sequence[Any]) -> None:
        """Take what `BaseTrainingEngine._get_forward_batch_info` made of a micro-batch."""
        if self.sketches.step is not None and self.sees_outputs:
            self.sketches.expect(attention_mask=attended(batch))

    def end(self, session: Session, step: int) -> list[Part]:
        """Return the sketches of the step that ends, and look at the next one."""
        parts = list(self.sketches.end(step, self.rank))
        self.begin(session, step + 1)
        return parts

    def record_sent(self, session: Session, step: int, engine: nn.Module) -> None:
        """Write the weights that the engine is about to be given; once a step.

        Args:
            engine: the rollout engine's model, which says in what dtype it takes them.
        """
        plan = session.plan
        is_wanted = self.sees_syncs and plan.sketches_sync(step) and plan.takes_rank(self.rank)
        if not is_wanted or self.synced == step:
            return
        self.synced = step
        dtype = next((p.dtype for p in engine.parameters() if p.is_floating_point()), None)
        self.sketches.record_sync(self.chunks, dtype)
        self._write(session, list(self.sketches.end_sync(step, self.rank)))

    def record_given(self, session: Session, step: int, engine: nn.Module) -> None:
        """Write the weights that the first replica of the engine has now."""
        groups: Any = sys.modules["vllm.distributed.parallel_state"]
        if self.synced != step or groups.get_tensor_model_parallel_group().first_rank:
            return
        rank = int(groups.get_tensor_model_parallel_rank())
        ranks = int(groups.get_tensor_model_parallel_world_size())
        recorder = Recorder()
        record_engine(recorder, engine, self.config, rank=rank, ranks=ranks)
        self._write(session, [Part(engine_path(Path(), step, rank), step, rank, recorder)])

    def _write(self, session: Session, parts: Sequence[Part]) -> None:
        writer = session.writer(f"actor-{self.rank}")
        write_parts(writer, parts)
        writer.drain()  # Ray ends its workers without notice


def sketches_of(session: Session, worker: Any, rank: int) -> ActorSketches | None:
    """Return the sketches of a hybrid actor worker; None where nothing can say what its model is.

    The log says what is not recorded, and why.
    """
    settings, rl = worker.megatron_config, worker.rl_config

    def has(owner: Any, name: str) -> bool:
        return bool(getattr(owner, name, None))

    try:
        config = dict(worker.inference_model.hf_config.to_dict())
        has_experts = bool(sizes_of(config, where="config.json").experts)
        if has(settings, "noop_layers"):
            raise ValueError("layers that do nothing (noop_layers) shift the numbers of the others")
        if has_experts and has(settings, "moe_tp_extend_ep"):
            raise ValueError("experts are spread over tensor-parallel ranks (moe_tp_extend_ep)")
        parts = megatron_parts(worker.model, config)
    except (AttributeError, ValueError, ConfigError) as error:
        session.log.write(f"no sketches of activations or weights: {error}")
        return None
    made = ActorSketches(
        worker.model,
        worker.optimizer,
        config,
        StepSketches(session.log, local=parts),
        rank,
    )
    if int(getattr(settings, "context_parallel_size", 1) or 1) > 1:
        made.sees_outputs = False
        session.log.write("no sketch of activations: ranks share sequences (context parallelism)")
    if has(rl, "share_backbone"):
        made.sees_outputs = False
        session.log.write("no sketch of activations: the reference model is the actor's backbone")
    if has_experts or has(settings, "lora_target_modules"):
        made.sees_syncs = False
        what = (
            "experts are laid out vLLM-Ascend's own way" if has_experts else "adapters are merged"
        )
        session.log.write(f"no sketch of the weights at syncs: {what}")
    return made


def attended(batch: Sequence[Any]) -> Tensor:
    """Tell which ids of a micro-batch are no padding; the model is given no mask that says it.

    Args:
        batch: ids [b, s], …, the rows by name, and behind them what 2.1.0 and later say of packed
            rows: their lengths [rows], and where they begin and end with padding [rows + 1].

    Returns:
        bool [b, s].
    """
    number = next(i for i, item in enumerate(batch) if isinstance(item, Mapping))
    ids, rows, packed = batch[0], batch[number], batch[number + 1 :]
    place = torch.arange(ids.shape[1], device=ids.device)
    if len(packed) < 2:
        ends: Tensor = (rows["prompt_length"] + rows["response_length"]).to(place)
        return place < ends.reshape(-1, 1)
    lengths: Tensor = packed[0].to(place)
    bounds: Tensor = packed[1].to(place)
    row = torch.searchsorted(bounds[1:], place, right=True).clamp(max=len(lengths) - 1)
    return (place - bounds[row] < lengths[row])[None]
