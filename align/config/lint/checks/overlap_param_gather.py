"""Overlapped parameter gathering is a known source of NaN and stale weights.

Source: Megatron-Bridge issues 1255, 2096 and 4168 (a NaN gradient norm that depends on this switch
alone); Megatron-LM issue 950 (a forward pass with the last step's weights); RLinf advises against
it with the distributed optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report the switch under either framework's name."""
    on = [
        value
        for name, value in sorted(run.config.values.items())
        if name.endswith("overlap_param_gather") and value.value is True
    ]
    if not on:
        return
    yield problem(
        run,
        "overlap_param_gather",
        Severity.WARNING,
        Effect(Rung.FORWARD, signature=("actor/grad_norm",)),
        on,
        Text("overlap_param_gather is on", "开启了 overlap_param_gather"),
        Text(
            "Weights are gathered while the forward pass already runs; where the order of the "
            "buckets is not that of the layers, a layer computes with last step's weights, and "
            "elsewhere gradients became NaN with this switch alone.",
            "前向计算时才收集权重；若 bucket 顺序与层的顺序不一致，某些层会使用上一步的权重，"
            "另有案例仅因该开关出现 NaN 梯度。",
        ),
        Text(
            "Switch it off for a comparison: numbers must not change.",
            "对比时将其关闭：数值不应变化。",
        ),
    )


FIRES = (
    Example({"actor.parallel_options.overlap_param_gather": True}, framework="mindspeed_rl"),
    Example({"actor.parallel_options.override_ddp_config.overlap_param_gather": True}),
)
SILENT = (
    Example({"actor.parallel_options.overlap_param_gather": False}, framework="mindspeed_rl"),
    Example({"actor.parallel_options.overlap_grad_reduce": True}, framework="mindspeed_rl"),
)
