"""Experts are split by tensor parallelism too unless that is set to 1.

Source: Qwen3-235B report, section on ETP; Megatron's expert_tensor_parallel_size defaults to the
tensor parallel size.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_ETP = "actor.parallel_options.expert_tensor_parallel_size"


def check(run: OneRun) -> Iterator[Finding]:
    """Report expert parallelism with an unset expert tensor parallel size."""
    sizes = run.numbers("actor.expert_parallel_size", "actor.tensor_parallel_size")
    if run.framework != "verl" or sizes is None or min(sizes) <= 1 or run.number(_ETP):
        return
    yield problem(
        run,
        "expert_tensor_parallel",
        Severity.INFO,
        Effect(Rung.FORWARD, Strength.NUMERIC),
        run.known("actor.expert_parallel_size", "actor.tensor_parallel_size", _ETP),
        Text(
            f"expert parallel size {shown(sizes[0])}, expert tensor parallel size not set",
            f"专家并行度为 {shown(sizes[0])}，未设置专家张量并行度",
        ),
        Text(
            f"Every expert is split {shown(sizes[1])} ways as the dense layers are: small experts "
            "become slow matrix products.",
            f"每个专家会像稠密层一样被切成 {shown(sizes[1])} 份：小专家的矩阵乘效率很低。",
        ),
        Text("Set expert_tensor_parallel_size to 1.", "将 expert_tensor_parallel_size 设为 1。"),
    )


_EP = {"actor.expert_parallel_size": 8, "actor.tensor_parallel_size": 4}
FIRES = (Example(_EP, Severity.INFO), Example(_EP | {_ETP: None}, Severity.INFO))
SILENT = (Example(_EP | {_ETP: 1}), Example(_EP | {"actor.tensor_parallel_size": 1}))
