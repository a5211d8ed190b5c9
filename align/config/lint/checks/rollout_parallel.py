"""How the rollout engine is split, against training.

Source: MindSpeed-RL refuses a pipelined engine; sums of another split round otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report an engine that cannot start, and say where training is split otherwise."""
    if run.framework == "mindspeed_rl" and (run.number("rollout.pipeline_parallel_size") or 1) > 1:
        yield _pipelined(run)
    sizes = run.numbers("rollout.tensor_parallel_size", "actor.tensor_parallel_size")
    if sizes is not None and sizes[0] != sizes[1]:
        yield _otherwise(run, *sizes)


def _pipelined(run: OneRun) -> Finding:
    return problem(
        run,
        "rollout_parallel.pipeline",
        Severity.ERROR,
        Effect(Rung.ROLLOUT),
        run.known("rollout.pipeline_parallel_size"),
        Text("the rollout engine is pipelined", "推理引擎使用了流水并行"),
        Text(
            "MindSpeed-RL stops at the start: it has no such engine.",
            "MindSpeed-RL 会在启动时报错。",
        ),
        Text("Set infer_pipeline_parallel_size to 1.", "将 infer_pipeline_parallel_size 设为 1。"),
    )


def _otherwise(run: OneRun, rollout: float, training: float) -> Finding:
    return problem(
        run,
        "rollout_parallel.training",
        Severity.INFO,
        Effect(Rung.ROLLOUT, Strength.NUMERIC),
        run.known("rollout.tensor_parallel_size", "actor.tensor_parallel_size"),
        Text(
            f"tensor parallel size is {shown(rollout)} in the rollout and {shown(training)} in "
            "training",
            f"张量并行度在 rollout 中为 {shown(rollout)}，在训练中为 {shown(training)}",
        ),
        Text(
            "Sums run in another order, so log_probs differ by rounding; weights are re-sharded "
            "after every update.",
            "求和顺序不同，log_probs 有舍入级差异；每次更新后权重都要重新切分。",
        ),
        Text(
            "Nothing to change; use one size when you look for the source of a train-rollout gap.",
            "无需修改；在排查训推差异时可使用同一并行度。",
        ),
    )


FIRES = (
    Example({"rollout.pipeline_parallel_size": 2}, Severity.ERROR, "mindspeed_rl"),
    Example({"rollout.tensor_parallel_size": 4, "actor.tensor_parallel_size": 8}, Severity.INFO),
)
SILENT = (
    Example({"rollout.tensor_parallel_size": 4, "actor.tensor_parallel_size": 4}),
    Example({"rollout.pipeline_parallel_size": 1}, framework="mindspeed_rl"),
)
