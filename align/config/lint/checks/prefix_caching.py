"""Cached prefixes on an NPU have returned wrong text.

Source: vllm-ascend issue 1553 (prefix cache with torchair graph and the Ascend scheduler: MMLU at
the level of chance, 0.2584); vllm issue 17103 (wake-up with a stale cache); MindSpeed-RL's default
is off, verl's on.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report prefix caching on an NPU, more severely with graph or scheduler options."""
    if not run.on_npu or not run.is_on("rollout.prefix_caching"):
        return
    options = [
        value
        for name, value in sorted(run.config.values.items())
        if name.startswith("rollout.engine_options.")
        and ("torchair" in name or "ascend_scheduler" in name)
        and value.value not in (None, False, (), "")
    ]
    yield problem(
        run,
        "prefix_caching",
        Severity.WARNING if options else Severity.INFO,
        Effect(Rung.ROLLOUT, Strength.SEMANTIC if options else Strength.NUMERIC),
        (*run.known("rollout.prefix_caching"), *options),
        Text(
            "prefix caching is on together with torchair graphs or the Ascend scheduler",
            "前缀缓存与 torchair 图模式或 Ascend 调度器同时开启",
        )
        if options
        else Text("prefix caching is on, on an NPU", "在 NPU 上开启了前缀缓存"),
        Text(
            "This combination answered at the level of chance (MMLU 0.258 in vllm-ascend 0.9.1).",
            "该组合曾使结果降至随机水平（vllm-ascend 0.9.1 上 MMLU 为 0.258）。",
        )
        if options
        else Text(
            "Cached keys and values must be thrown away after every weight update; a stale cache "
            "shows as a train-rollout gap that grows from step to step.",
            "每次更新权重后都必须清空缓存；缓存过期表现为训推差异逐步增大。",
        ),
        Text(
            "Switch it off (enable_prefix_caching: false) for a comparison, and see whether the "
            "gap goes away.",
            "对比时将其关闭（enable_prefix_caching: false），观察差异是否消失。",
        ),
    )


_ON_NPU: Settings = {"rollout.prefix_caching": True, "trainer.device": "npu"}
FIRES = (
    Example(_ON_NPU, Severity.INFO),
    Example(_ON_NPU | {"rollout.engine_options.torchair_graph": True}, framework="mindspeed_rl"),
)
SILENT = (
    Example({"rollout.prefix_caching": True, "trainer.device": "cuda"}),
    Example(_ON_NPU | {"rollout.prefix_caching": False}),
    Example(_ON_NPU, facts={"device": "cuda"}),
)
