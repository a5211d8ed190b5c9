"""Rollout and training should compute in one precision.

Source: MindSpeed-RL refuses anything but bfloat16 on both sides (validate_rl_args); verl measures
the gap as training/rollout_probs_diff, below 0.005 where it is normal.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.config.schema.rollout import MISMATCH_METRICS
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the precision of the rollout engine with that of the training forward pass."""
    both = run.known("rollout.dtype", "actor.dtype")
    if len(both) < 2 or "auto" in (both[0].value, both[1].value):
        return
    rollout, training = both
    is_refused = run.framework == "mindspeed_rl" and {rollout.value, training.value} != {"bfloat16"}
    if rollout.value == training.value and not is_refused:
        return
    yield problem(
        run,
        "rollout_dtype",
        Severity.ERROR if is_refused else Severity.WARNING,
        Effect(Rung.ROLLOUT, Strength.NUMERIC, MISMATCH_METRICS),
        both,
        Text(
            f"the rollout computes in {shown(rollout.value)}, training in {shown(training.value)}",
            f"rollout 使用 {shown(rollout.value)}，训练使用 {shown(training.value)}",
        ),
        Text(
            "MindSpeed-RL stops at the start: it accepts bfloat16 alone on both sides.",
            "MindSpeed-RL 会在启动时报错：两侧只接受 bfloat16。",
        )
        if is_refused
        else Text(
            "Responses are drawn from a more coarsely rounded model than the one that is trained: "
            "the gap between rollout and training probabilities grows by orders of magnitude and "
            "acts like off-policy data.",
            "采样模型与训练模型的舍入精度不同：rollout 与训练概率之间的差距会增大数个量级，"
            "其效果相当于 off-policy 数据。",
        ),
        Text(
            f"Set {rollout.raw.key} and {training.raw.key} to one precision.",
            f"将 {rollout.raw.key} 与 {training.raw.key} 设为同一精度。",
        ),
    )


FIRES = (
    Example({"rollout.dtype": "float16", "actor.dtype": "bfloat16"}),
    Example({"rollout.dtype": "bfloat16", "actor.dtype": "float32"}),
    Example({"rollout.dtype": "float16", "actor.dtype": "float16"}, Severity.ERROR, "mindspeed_rl"),
)
SILENT = (
    Example({"rollout.dtype": "bfloat16", "actor.dtype": "bfloat16"}),
    Example({"rollout.dtype": "auto", "actor.dtype": "bfloat16"}),
    Example({"rollout.dtype": "float16", "actor.dtype": "float16"}),
)
