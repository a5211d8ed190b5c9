"""A mini-batch cannot be larger than the batch.

Source: verl from 0.3 on refuses train_batch_size < ppo_mini_batch_size without dynamic batches
(read in the tags: 0.2.0 does not); elsewhere the update takes fewer rows than it says.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Compare mini-batch and batch, both in prompts."""
    sizes = run.numbers("actor.mini_batch_size", "data.train_batch_size")
    if sizes is None or not 0 < sizes[1] < sizes[0]:
        return
    refuses = run.framework == "verl" and run.older_than("verl", 0, 3) is False
    refused = refuses and run.is_off("actor.dynamic_batch")
    yield problem(
        run,
        "batch_sizes",
        Severity.ERROR if refused else Severity.WARNING,
        Effect(Rung.LOSS),
        run.known("actor.mini_batch_size", "data.train_batch_size", "rollout.n"),
        Text(
            f"the mini-batch has {shown(sizes[0])} prompts, the batch {shown(sizes[1])}",
            f"mini-batch 为 {shown(sizes[0])} 个 prompt，batch 为 {shown(sizes[1])}",
        ),
        Text(
            "verl stops at the start."
            if refused
            else "An update takes fewer rows than it says. Both sizes are in prompts; only "
            "MindSpeed-RL before 2025-05-15 counts sequences.",
            "verl 会在启动时报错。"
            if refused
            else "一次更新的行数少于所写。两者都以 prompt 计；"
            "只有 2025-05-15 之前的 MindSpeed-RL 以序列计。",
        ),
        Text(
            "Set the mini-batch size to the batch size or a divisor of it.",
            "将 mini-batch 设为 batch 大小或其约数。",
        ),
    )


_SIZES: Settings = {"data.train_batch_size": 64, "actor.mini_batch_size": 256}
FIRES = (
    Example(_SIZES | {"actor.dynamic_batch": False}, Severity.ERROR),
    Example(_SIZES | {"actor.dynamic_batch": False}, version="0.2.0"),
    Example(_SIZES, framework="mindspeed_rl"),
)
SILENT = (
    Example({"data.train_batch_size": 64, "actor.mini_batch_size": 64}),
    Example({"data.train_batch_size": 0, "actor.mini_batch_size": 64}),
)
