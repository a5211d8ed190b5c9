"""Optimizer weights and states in bfloat16 lose small updates.

Source: AReaL pull requests 1369 and 1634 (AdamW on bfloat16 parameters, loss plateau about three
times higher); ml-by-hand issue 85 (0 of 768 parameters moved in 100 steps, 603 with float32).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_STATES = (
    "actor.precision_options.exp_avg_dtype",
    "actor.precision_options.exp_avg_sq_dtype",
    "actor.precision_options.main_grads_dtype",
)
_HALF = ("bfloat16", "bf16", "float16", "fp16")


def check(run: OneRun) -> Iterator[Finding]:
    """Report half-precision master weights, and half-precision states."""
    if run.value("actor.master_dtype") in _HALF and not run.number("model.lora_rank"):
        yield problem(
            run,
            "optimizer_precision.weights",
            Severity.WARNING,
            Effect(Rung.OPTIMIZER),
            run.known("actor.master_dtype", "actor.lr"),
            Text(
                f"the optimizer updates weights in {shown(run.value('actor.master_dtype'))}",
                f"优化器以 {shown(run.value('actor.master_dtype'))} 更新权重",
            ),
            Text(
                "A bfloat16 weight of 1 moves in steps of 0.0078; updates of size lr, such as "
                "1e-6, are rounded away. Most weights never move, whatever the gradient.",
                "bfloat16 中数值为 1 的权重步长为 0.0078；学习率量级（如 1e-6）的更新会被舍去，"
                "无论梯度如何，大部分权重都不会变化。",
            ),
            Text(
                "Keep float32 master weights (fsdp_config.model_dtype=fp32), and tune the learning "
                "rate again: it acts more strongly then.",
                "使用 float32 主权重（fsdp_config.model_dtype=fp32），并重新调整学习率："
                "其作用会变强。",
            ),
        )
    states = [v for v in run.known(*_STATES) if str(v.value).lower() in _HALF]
    if states:
        yield problem(
            run,
            "optimizer_precision.states",
            Severity.WARNING,
            Effect(Rung.OPTIMIZER, Strength.NUMERIC),
            states,
            Text(
                "optimizer states are kept in half precision: "
                + ", ".join(v.field.rpartition(".")[2] for v in states),
                "优化器状态使用半精度：" + ", ".join(v.field.rpartition(".")[2] for v in states),
            ),
            Text(
                "Moments and gradients lose 16 of 24 bits in every step.",
                "动量与梯度每一步都会损失精度（24 位尾数只剩 8 位）。",
            ),
            Text("Set these to fp32.", "将其设为 fp32。"),
        )


FIRES = (
    Example({"actor.master_dtype": "bfloat16"}),
    Example({"actor.precision_options.exp_avg_dtype": "bf16"}),
)
SILENT = (
    Example({"actor.master_dtype": "float32", "actor.precision_options.exp_avg_dtype": "fp32"}),
    Example({"actor.master_dtype": "bfloat16", "model.lora_rank": 32}),
)
