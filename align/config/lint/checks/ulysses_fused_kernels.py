"""Ulysses sequence parallelism with fused kernels trains on wrong labels in older verl.

Source: verl issues 6068, 3723, 3512 and pull request 6268: the fused forward shifted labels inside
each shard. Read in the tags: v0.7.1 has the fault, v0.8.0 the fix.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.config.schema.rollout import MISMATCH_METRICS
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report the pair of settings before verl 0.8, or where the version is not known."""
    old = run.older_than("verl", 0, 8)
    size = run.number("actor.context_parallel_size") or 1
    megatron = run.value("actor.strategy") == "megatron"
    if old is False or size <= 1 or megatron or not run.is_on("model.fused_kernels"):
        return
    yield problem(
        run,
        "ulysses_fused_kernels",
        Severity.ERROR if old and run.states_version else Severity.WARNING,
        Effect(Rung.FORWARD, signature=("actor/ppo_kl", *MISMATCH_METRICS)),
        run.known("model.fused_kernels", "actor.context_parallel_size"),
        Text(
            f"fused kernels with Ulysses sequence parallel size {shown(size)}",
            f"融合算子与 Ulysses 序列并行（{shown(size)}）同时开启",
        ),
        Text(
            "Before verl 0.8 every sequence shard shifts its labels by itself, so the last "
            "position of each shard is scored with a wrong token: log_probs and KL are off, "
            "silently.",
            "verl 0.8 之前每个序列分片各自移位标签，分片的最后一个位置会以错误的 token 计分："
            "log_probs 与 KL 出错且没有任何提示。",
        ),
        Text(
            "Set use_fused_kernels=False or ulysses_sequence_parallel_size=1, or use verl 0.8 or "
            "later.",
            "设置 use_fused_kernels=False 或 ulysses_sequence_parallel_size=1，"
            "或使用 verl 0.8 及以后版本。",
        ),
    )


_BOTH: Settings = {
    "model.fused_kernels": True,
    "actor.context_parallel_size": 2,
    "actor.strategy": "fsdp",
}
FIRES = (
    Example(_BOTH, Severity.ERROR, version="0.7.1"),
    Example(_BOTH, version=None),
    Example(_BOTH, version="0.7.1", assumed_version=True),
)
SILENT = (
    Example(_BOTH, version="0.8.0"),
    Example(_BOTH | {"actor.context_parallel_size": 1}, version="0.7.1"),
    Example(_BOTH | {"model.fused_kernels": False}, version="0.7.1"),
)
