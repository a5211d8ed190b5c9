"""Context parallelism of Megatron on NPU must be set in two places.

Source: verl's performance guide for Ascend (both parameters must be added); Qwen3-235B report: CP
fails without override_transformer_config.context_parallel_size.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_OVERRIDE = "actor.parallel_options.transformer_context_parallel_size"
_KEY = "actor_rollout_ref.actor.megatron.override_transformer_config.context_parallel_size"


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the two context parallel sizes of verl's Megatron engine on NPU."""
    size = run.number("actor.context_parallel_size") or 1
    megatron = run.framework == "verl" and run.value("actor.strategy") == "megatron"
    other = run.number(_OVERRIDE)
    if not megatron or not run.on_npu or size == (other or 1):
        return
    yield problem(
        run,
        "context_parallel_override",
        Severity.ERROR,
        Effect(Rung.FORWARD),
        (*run.known(_OVERRIDE), *run.known("actor.context_parallel_size")),
        Text(
            f"context parallel size is {shown(size)}, but "
            + ("is not set for MindSpeed" if other is None else f"{shown(other)} for MindSpeed"),
            f"上下文并行度为 {shown(size)}，"
            + ("但未对 MindSpeed 设置" if other is None else f"而对 MindSpeed 为 {shown(other)}"),
        ),
        Text(
            "MindSpeed reads override_transformer_config.context_parallel_size; without it the run "
            "stops with an error, or attention is not split as its groups are.",
            "MindSpeed 读取 override_transformer_config.context_parallel_size；"
            "缺少该项会直接报错，或注意力的切分与通信组不一致。",
        ),
        Text(f"Add +{_KEY}={shown(size)}.", f"增加 +{_KEY}={shown(size)}。"),
    )


_CP: Settings = {
    "actor.strategy": "megatron",
    "trainer.device": "npu",
    "actor.context_parallel_size": 4,
}
FIRES = (
    Example(_CP, Severity.ERROR),
    Example(_CP | {_OVERRIDE: 2}, Severity.ERROR),
)
SILENT = (
    Example(_CP | {_OVERRIDE: 4}),
    Example(_CP | {"trainer.device": "cuda"}),
    Example(_CP | {"actor.context_parallel_size": 1}),
    Example(_CP | {"actor.strategy": "fsdp"}),
)
