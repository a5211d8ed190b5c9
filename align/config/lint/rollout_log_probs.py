"""What a run does with the log_probs that its rollout engine returns."""

from __future__ import annotations

from align.config.lint.one_run import OneRun

_AS_OLD = ("loss.options.use_rollout_log_probs", "trainer.mode.async.use_rollout_log_probs")
_CORRECTION = "loss.rollout_correction."
_SET = ("rollout_is", "rollout_rs", "bypass_mode")
_OFF = (None, False, "none", "", 0)


def recorded(run: OneRun) -> bool:
    """Tell whether the engine's log_probs are kept."""
    return run.is_on("rollout.calculate_log_probs") or used_in_loss(run)


def used_in_loss(run: OneRun) -> bool:
    """Tell whether they reach the loss, as importance weights, as a filter or as old_log_probs."""
    if any(map(run.is_on, _AS_OLD)):
        return True
    if (run.number(f"{_CORRECTION}tis_imp_ratio_cap") or 0) > 0:
        return True
    return any(run.value(f"{_CORRECTION}{name}") not in _OFF for name in _SET)
