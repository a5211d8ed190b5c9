"""Sizes that must divide each other.

Source: Qwen3-235B report (DataProto fails where batch × n is not divisible by the cards); the
checks of verl, MindSpeed-RL, megatron-core and vLLM that `align.config.derive.divisibility` lists.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.derive.divisibility import divisibility
from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.config.schema import field_named
from align.core.finding import Finding, Severity
from align.core.text import Text

_ENGINE = "rollout.tensor_parallel_size"


def check(run: OneRun) -> Iterator[Finding]:
    """Report every pair of sizes that does not divide."""
    values = dict(run.config.values)
    if run.separate_rollout:
        values.pop(_ENGINE, None)
    heads = run.model.get("model.num_attention_heads")
    if heads is not None:
        values.setdefault(heads.field, heads)
    for found in divisibility(values):
        yield problem(
            run,
            f"divisibility.{found.field}",
            Severity.ERROR if found.stops else Severity.WARNING,
            Effect(field_named(found.field).acts_on),
            [values[found.field]] if found.field in values else [],
            found.text,
            Text(
                "The framework stops at the start or in the first step.",
                "框架会在启动或第一步时报错。",
            )
            if found.stops
            else Text(
                "Mini-batches get unequal numbers of rows, or rows are left out.",
                "各 mini-batch 的行数不等，或有数据被丢弃。",
            ),
            found.fix,
        )


_BATCH = {
    "data.train_batch_size": 384,
    "rollout.n": 16,
    "trainer.world_size": 100,
    "actor.tensor_parallel_size": 1,
    "actor.pipeline_parallel_size": 1,
    "actor.context_parallel_size": 1,
}
FIRES = (
    Example({"data.train_batch_size": 100, "actor.mini_batch_size": 64}),
    Example(_BATCH, Severity.ERROR),
    Example({"rollout.tensor_parallel_size": 2, "trainer.world_size": 1}, Severity.ERROR),
    Example(
        {"rollout.tensor_parallel_size": 8},
        Severity.ERROR,
        model={"model.num_attention_heads": 28},
    ),
)
SILENT = (
    Example(_BATCH | {"trainer.world_size": 128}),
    Example({"rollout.tensor_parallel_size": 4}, model={"model.num_attention_heads": 28}),
    Example(
        {
            "rollout.tensor_parallel_size": 4,
            "trainer.world_size": 2,
            "trainer.mode.rollout.total_rollout_steps": 5,
        }
    ),
)
