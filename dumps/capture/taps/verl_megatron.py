"""verl's Megatron engine (0.8 and later) and Megatron actor (to 0.7), rank by rank.

verl packs the sequences of a micro-batch with padding between them and tells the model the padded
bounds alone; later pipeline stages are not called with packed ids at all. So token keys are made
of the sequences themselves, which every rank has.
"""

from __future__ import annotations

import sys
from typing import Any

from dumps.capture.plan import What
from dumps.capture.session import Session
from dumps.capture.sketch.megatron import megatron_parts
from dumps.capture.step_sketches import StepSketches, write_parts
from dumps.capture.taps.verl_worker import (
    is_wanted,
    role_of,
    this_rank,
    update_of,
)
from dumps.capture.wrap import After, wrap


def engine_ready(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """Remember the actor's chunks once its engine is built, and prepare their sketches."""

    def ready(result: Any) -> None:
        if role_of(self) != "actor":
            return
        rank = this_rank()
        rank.module, rank.optimizer = self.module, self.optimizer
        rank.has_rows = bool(self.is_mp_src_rank_with_outputs())
        if session.takes(What.MODULES):
            session.log.write("no statistics of modules under Megatron: --what sketches has them")
        if not session.takes(What.SKETCHES, What.WEIGHTS):
            return
        unread = _unread(self)
        if unread:
            session.log.write(f"no sketches of activations or weights: {unread} under Megatron")
            return
        parts = megatron_parts(self.module, self.model_config.hf_config.to_dict())
        rank.sketches, rank.is_read_as_sent = StepSketches(session.log, parts), True

    return ready


def chunk_forward(
    session: Session, self: Any, batch_iter: Any, model: Any, *args: Any, **kwargs: Any
) -> None:
    """Note whose micro-batch a chunk of the model is about to see."""
    rank, role, trains = this_rank(), role_of(self), _is_training(args, kwargs)
    rank.phase = f"{role}.{'train' if trains else 'forward'}"
    counts = trains and role == "actor" and model is self.module[-1]
    rank.begins_micro_batch = counts and is_wanted(session)


def chunk_inputs(session: Session, self: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Note the sequences that a chunk of the model is about to see."""
    if role_of(self) != "actor":
        return
    rank, ids = this_rank(), batch["input_ids"]
    if rank.sketches is not None:
        rank.sketches.expect(sequences=ids)
    if not rank.begins_micro_batch:
        return
    rank.begins_micro_batch = False
    rank.record.begin_micro_batch()
    if session.takes(What.INPUTS) and ids.is_nested and rank.has_rows:
        rank.record.keep({"input_ids": ids.values(), "cu_seqlens": ids.offsets()})


def weights_read(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Sketch the weights as they are sent: they are on the device now."""
    rank = this_rank()
    if self.module is not rank.module or not rank.engine_dtypes:
        return None

    def after(result: Any) -> None:
        with session.sketching("the weights"):
            parts = rank.weights_are_read()
            if parts:
                writer = session.writer(rank.name)
                write_parts(writer, parts)
                writer.drain()

    return after


def actor_update(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Look at the optimizer's steps for as long as an actor updates (to 0.7)."""
    rank = this_rank()
    if session.takes(What.SKETCHES, What.WEIGHTS) and not rank.is_told:
        rank.is_told = True
        session.log.write("no sketches of activations or weights: Megatron before verl 0.8")
    if not is_wanted(session):
        return None
    rank.has_rows = _has_rows()
    optimizer = self.actor_optimizer
    own = vars(optimizer).get("step")

    def step(*a: Any, **k: Any) -> After | None:
        update = update_of(session, self.actor_module, optimizer)
        return None if update is None else lambda result: update(result[1])

    wrap(optimizer, "step", "verl: step of Megatron's optimizer", step, session.log)

    def after(result: Any) -> None:
        if own is None:
            del optimizer.step
        else:
            optimizer.step = own

    return after


def _is_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell a training pass from one for log_probs, by the engine's function for its output.

    Source: `MegatronEngine.forward_backward_batch` binds ``forward_only`` to it.
    """
    process = kwargs.get("postprocess_micro_batch_func", (*args, None)[-1])
    return not getattr(process, "keywords", {}).get("forward_only", False)


def _has_rows() -> bool:
    """Tell the first of the ranks that compute the same log_probs, by Megatron's groups."""
    groups: Any = sys.modules["megatron.core.parallel_state"]
    ranks = groups.get_tensor_model_parallel_rank(), groups.get_context_parallel_rank()
    return ranks == (0, 0)


def _unread(engine: Any) -> str:
    """Return what an engine does with its model that no rule reads; "" for nothing."""
    settings = engine.engine_config
    if getattr(settings, "dynamic_context_parallel", False):
        return "dynamic context parallelism"
    if getattr(settings, "use_megatron_fsdp", False):
        return "FSDP"
    if getattr(engine, "peft_cls", None) is not None:
        return "adapters"
    return "quantisation-aware training" if getattr(engine, "_qat_enabled", False) else ""
