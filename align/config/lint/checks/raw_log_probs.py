"""Log_probs of the rollout engine must be taken after temperature, as training's are.

Source: trl issue 4159 (ratio 2.0 at temperature 0.6) and the family of missing temperatures; verl
and MindSpeed-RL divide training logits by the temperature, vLLM's raw_logprobs do not. verl sets
logprobs_mode since 0.7; before that vLLM's default, raw, holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.config.lint.rollout_log_probs import recorded, used_in_loss
from align.config.schema.rollout import MISMATCH_METRICS
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report raw log_probs where the temperature makes them differ from training's."""
    temperature = run.number("rollout.temperature")
    if temperature in (None, 0, 1.0) or not _raw(run) or not recorded(run):
        return
    loss = used_in_loss(run)
    yield problem(
        run,
        "raw_log_probs",
        Severity.ERROR if loss else Severity.WARNING,
        Effect(Rung.LOSS if loss else Rung.ROLLOUT, signature=MISMATCH_METRICS),
        run.known("rollout.logprobs_mode", "rollout.temperature"),
        Text(
            f"rollout log_probs are raw, but the temperature is {shown(temperature)}",
            f"rollout 的 log_probs 未经温度处理，而温度为 {shown(temperature)}",
        ),
        Text(
            "Training divides its logits by the temperature and the engine's raw log_probs do not: "
            "the ratio between them is wrong for every token"
            + (", and the loss uses it." if loss else "; the mismatch metrics show it."),
            "训练会用温度除 logits，而引擎的 raw log_probs 不会：每个 token 的比值都不正确"
            + ("，且损失会使用该比值。" if loss else "；会体现在训推差异指标中。"),
        ),
        Text(
            "Set actor_rollout_ref.rollout.logprobs_mode=processed_logprobs (verl from 0.7 on), or "
            "the temperature to 1.",
            "设置 actor_rollout_ref.rollout.logprobs_mode=processed_logprobs（verl 0.7 起），"
            "或将温度设为 1。",
        ),
    )


def _raw(run: OneRun) -> bool:
    mode = run.value("rollout.logprobs_mode")
    if isinstance(mode, str):
        return mode.startswith("raw")
    return run.older_than("verl", 0, 7) is True


_USED = {"rollout.calculate_log_probs": True, "rollout.temperature": 0.6}
_RAW = _USED | {"rollout.logprobs_mode": "raw_logprobs"}
FIRES = (
    Example(_RAW),
    Example(_RAW | {"loss.rollout_correction.rollout_is": "token"}, Severity.ERROR),
    Example(_USED, version="0.6.1"),
)
SILENT = (
    Example(_USED | {"rollout.logprobs_mode": "processed_logprobs"}),
    Example(_RAW | {"rollout.temperature": 1.0}),
    Example(_RAW | {"rollout.calculate_log_probs": False}),
)
