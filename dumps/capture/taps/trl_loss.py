"""What TRL computes each micro-batch's loss from, and that loss."""

from __future__ import annotations

from typing import Any

from dumps.capture.plan import What
from dumps.capture.session import Session, timed
from dumps.capture.update_record import UpdateRecord
from dumps.capture.wrap import After, wrap

_LOG_PROBS = "_get_per_token_logps_and_entropies"  # 0.20 and later
_ENGINE_WEIGHTS = "importance_sampling_ratio"  # of vLLM's log_probs


class _Trained:
    """The optimizer step in progress; its log_probs are those of the loss in progress."""

    record = UpdateRecord()
    is_in_loss = False


_now = _Trained()


def look_at_log_probs(session: Session, trainer: Any) -> None:
    """Look at the log_probs that a trainer computes, until `look_away`."""
    if session.takes(What.LOG_PROBS) and hasattr(trainer, _LOG_PROBS):
        tap = timed(session, _log_probs_computed)
        wrap(trainer, _LOG_PROBS, f"GRPOTrainer.{_LOG_PROBS}", tap, session.log)


def look_away(trainer: Any) -> None:
    """Leave the trainer as it was."""
    vars(trainer).pop(_LOG_PROBS, None)


def loss_begun(session: Session, trainer: Any, inputs: Any) -> After | None:
    """Keep what the loss of a micro-batch is of, and what comes out."""
    step, rank = int(trainer.state.global_step) + 1, int(trainer.accelerator.process_index)
    plan = session.plan
    if not trainer.model.training or not plan.takes(What.LOG_PROBS):
        return None
    if not plan.takes_step(step) or not plan.takes_rank(rank):
        return None
    _now.record.begin_micro_batch()
    _now.is_in_loss = True

    def after(loss: Any) -> None:
        _now.is_in_loss = False
        kept = {"policy_loss": loss} if _is_of_known_terms(trainer, inputs) else {}
        _now.record.keep(kept | _given(inputs))

    return after


def taken_record() -> UpdateRecord:
    """Return the record of the optimizer step that ends here, and begin the next."""
    record, _now.record = _now.record, UpdateRecord()
    return record


def _log_probs_computed(session: Session, *args: Any, **kwargs: Any) -> After | None:
    if not _now.is_in_loss:
        return None  # of generation: old and reference log_probs

    def after(result: Any) -> None:
        _now.record.keep({"log_probs": result[0], "entropys": result[1]})

    return after


def _given(inputs: Any) -> dict[str, Any]:
    """Return a micro-batch's tensors; old log_probs are those of the loss where none are given."""
    mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    advantages, old = inputs["advantages"], inputs.get("old_per_token_logps")
    key = f"update.{_now.record.update}.micro.{_now.record.micro}.log_probs"
    return {
        "response_mask": mask,
        "advantages": advantages[:, None] * mask if advantages.ndim == 1 else advantages,
        "old_log_probs": _now.record.tensors.get(key) if old is None else old,
        "ref_log_prob": inputs.get("ref_per_token_logps"),
    }


def _is_of_known_terms(trainer: Any, inputs: Any) -> bool:
    """Whether the loss is the clipped surrogate plus beta times the KL, divided by the update's."""
    settings = trainer.args
    options = (
        getattr(trainer, "off_policy_mask_threshold", None),
        getattr(settings, "delta", None),
        getattr(trainer, "_entropy_bonus_enabled", None),
        getattr(trainer, "aux_loss_enabled", None),
        getattr(trainer, "top_entropy_quantile", 1.0) < 1.0,
        # its token losses are divided by a share of all the generation's tokens
        settings.steps_per_generation != settings.gradient_accumulation_steps,
    )
    return not any(options) and inputs.get(_ENGINE_WEIGHTS) is None
