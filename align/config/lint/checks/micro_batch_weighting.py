"""Older loss normalisation makes the micro-batch a hyperparameter.

Source: verl up to 0.7 and MindSpeed-RL take the token mean inside each micro-batch; verl issues 906
and 5625 and the family of gradient accumulation faults.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Say it where the loss is a token mean and a mini-batch is split."""
    local = run.framework == "mindspeed_rl" or run.older_than("verl", 0, 8) is True
    if not local or run.value("loss.aggregation") != "token-mean":
        return
    rows = run.numbers("derived.sequences_per_optimizer_step", "derived.data_parallel_size")
    size = run.number("actor.micro_batch_size")
    dynamic = run.is_on("actor.dynamic_batch")
    if not dynamic and (rows is None or size is None or not rows[1] or rows[0] / rows[1] <= size):
        return
    yield problem(
        run,
        "micro_batch_weighting",
        Severity.INFO,
        Effect(Rung.LOSS),
        run.known("actor.micro_batch_size", "actor.dynamic_batch", "loss.aggregation"),
        Text(
            "the token mean is taken within each micro-batch",
            "token 均值在每个 micro-batch 内计算",
        ),
        Text(
            "Tokens of short micro-batches count more, so micro-batch size, packing and the number "
            "of cards change the loss. verl from 0.8 on divides by all tokens of the mini-batch.",
            "较短 micro-batch 中的 token 权重更大，因此 micro-batch 大小、打包方式与卡数"
            "都会改变损失。"
            "verl 0.8 起除以整个 mini-batch 的 token 数。",
        ),
        Text(
            "Keep micro-batch size and data parallel size equal in both runs, or use "
            "seq-mean-token-mean.",
            "两次运行保持相同的 micro-batch 大小与数据并行度，或使用 seq-mean-token-mean。",
        ),
    )


_SPLIT: Settings = {
    "loss.aggregation": "token-mean",
    "actor.mini_batch_size": 64,
    "rollout.n": 8,
    "actor.micro_batch_size": 4,
    "trainer.world_size": 8,
    "actor.tensor_parallel_size": 1,
    "actor.pipeline_parallel_size": 1,
    "actor.context_parallel_size": 1,
}
FIRES = (
    Example(_SPLIT, Severity.INFO, version="0.6.1"),
    Example(_SPLIT, Severity.INFO, framework="mindspeed_rl"),
)
SILENT = (
    Example(_SPLIT, version="0.9.1"),
    Example(_SPLIT | {"loss.aggregation": "seq-mean-token-mean"}, version="0.6.1"),
    Example(_SPLIT | {"actor.micro_batch_size": 64}, version="0.6.1"),
)
