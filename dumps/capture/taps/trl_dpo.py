"""TRL's DPOTrainer: what each micro-batch's loss is made of, and the gradients of each step.

Rows are the pairs' chosen responses, then their rejected ones, in the same order. Of a micro-batch
of p pairs, padded to length s, a step's part keeps

    input_ids, attention_mask, response_mask   [2p, s]
    log_probs, ref_log_prob                    [2p, s-1], 0 but at a response's tokens
    ref_sequence_log_probs                     [2p] sums, where TRL computed them before training
    preference_loss                            its mean over the micro-batch's pairs
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from dumps.capture.device import copied
from dumps.capture.plan import What
from dumps.capture.session import Session
from dumps.capture.taps.trl import keep_gradients, part_name
from dumps.capture.taps.trl_sketches import gradients_whole, look_at_model
from dumps.capture.update_record import UpdateRecord, step_file, writes
from dumps.capture.wrap import After

ROLE = "preference"
_PRECOMPUTED = ("ref_chosen_logps", "ref_rejected_logps")


@dataclass
class _Trained:
    """The optimizer step in progress.

    Args:
        handles: hooks on the models, while a loss is computed.
        is_told: whether the log says already that the models give no log_probs.
    """

    record: UpdateRecord = field(default_factory=UpdateRecord)
    handles: list[RemovableHandle] = field(default_factory=list)
    is_told: bool = False


_now = _Trained()


def loss_computed(
    session: Session, self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any
) -> After | None:
    """Keep what the loss of a micro-batch is made of, and what comes out."""
    look_at_model(session, self, model)
    if not self.model.training or not _takes(session, self):
        return None
    _now.record.begin_micro_batch()
    _look_away()  # of a loss that failed
    if session.takes(What.LOG_PROBS):
        _look_at_passes(session, self)

    def after(result: Any) -> None:
        _look_away()
        loss = result[0] if isinstance(result, tuple) else result
        takes_numbers = session.takes(What.LOG_PROBS)
        _now.record.keep({"preference_loss": loss} if takes_numbers else {})
        _now.record.keep(_rows(inputs))
        if takes_numbers:
            _now.record.keep(_precomputed(inputs))
            _tell_what_is_missing(session)

    return after


def trained(session: Session, self: Any, model: Any, *args: Any, **kwargs: Any) -> After:
    """End an optimizer step once its gradients are whole, before they are clipped."""

    def after(result: Any) -> None:
        if not self.accelerator.sync_gradients:
            return  # another micro-batch follows
        step, rank = int(self.state.global_step) + 1, int(self.accelerator.process_index)
        record, _now.record = _now.record, UpdateRecord()
        keep_gradients(session, self, record, model)
        if record.tensors:
            tensors, notes = copied(record.tensors), record.notes(step, rank, ROLE)
            files = {step_file(step, f"{ROLE}-{rank}"): writes(tensors, notes)}
            session.writer(part_name(rank)).submit(step, lambda: files)
        gradients_whole(session, self, model, step, rank)
        session.note_time(part_name(rank), step)

    return after


def _takes(session: Session, trainer: Any) -> bool:
    """Whether the plan takes anything of the step in progress."""
    step, rank = int(trainer.state.global_step) + 1, int(trainer.accelerator.process_index)
    if not session.takes(What.LOG_PROBS, What.INPUTS):
        return False
    return session.plan.takes_step(step) and session.plan.takes_rank(rank)


def _look_at_passes(session: Session, trainer: Any) -> None:
    """Keep the log_probs that both models give, until `_look_away`."""

    def passed(module: Any, args: Any, output: Any) -> None:
        log_probs = getattr(output, "log_probs", None)
        if isinstance(log_probs, Tensor):
            # adapters have one model for both; TRL computes the reference's without gradients
            name = "log_probs" if torch.is_grad_enabled() else "ref_log_prob"
            with session.log.kept("DPOTrainer's log_probs"):
                _now.record.keep({name: log_probs})

    for model in (trainer.model, getattr(trainer, "ref_model", None)):
        if isinstance(model, torch.nn.Module):
            _now.handles.append(model.register_forward_hook(passed))


def _look_away() -> None:
    while _now.handles:
        _now.handles.pop().remove()


def _rows(inputs: Any) -> dict[str, Any]:
    """Return the ids of a micro-batch; empty for versions that keep the two responses apart."""
    if "completion_mask" not in inputs:
        return {}
    return {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "response_mask": inputs["completion_mask"],
    }


def _precomputed(inputs: Any) -> dict[str, Any]:
    """Return the reference's sums that were computed before training, where they were."""
    sums = [inputs[name] for name in _PRECOMPUTED if name in inputs]
    return {"ref_sequence_log_probs": torch.cat(sums)} if len(sums) == len(_PRECOMPUTED) else {}


def _tell_what_is_missing(session: Session) -> None:
    key = f"update.{_now.record.update}.micro.{_now.record.micro}."
    if key + "log_probs" not in _now.record.tensors and not _now.is_told:
        _now.is_told = True
        session.log.write(
            "DPOTrainer: its models give no log_probs (TRL 1.16 does), only the loss is recorded"
        )
