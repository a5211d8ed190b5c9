"""Pipeline parallelism of verl on NPU fails with an older MindSpeed.

Source: Qwen3-235B report: no module megatron.training; MindSpeed after 5 September 2025 or a fix in
optimize_p2p_comm.py.
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
    """Name the known failure where a run uses pipeline parallelism on NPU."""
    size = run.number("actor.pipeline_parallel_size") or 1
    if run.framework != "verl" or not run.on_npu or size <= 1:
        return
    yield problem(
        run,
        "pipeline_parallel",
        Severity.INFO,
        Effect(Rung.ENVIRONMENT, Strength.NONE),
        (*run.known("actor.pipeline_parallel_size"), *run.seen_facts("mindspeed")),
        Text(
            f"pipeline parallel size {shown(size)} on an NPU",
            f"在 NPU 上流水并行度为 {shown(size)}",
        ),
        Text(
            "MindSpeed before September 2025 imports megatron.training, which verl does not "
            "install, and the run stops.",
            "2025 年 9 月之前的 MindSpeed 会导入 verl 未安装的 megatron.training，运行会报错。",
        ),
        Text(
            "If it stops so, update MindSpeed, or repair the import in optimize_p2p_comm.py.",
            "若出现该报错，升级 MindSpeed，或修复 optimize_p2p_comm.py 中的导入。",
        ),
    )


FIRES = (Example({"actor.pipeline_parallel_size": 8, "trainer.device": "npu"}, Severity.INFO),)
SILENT = (
    Example({"actor.pipeline_parallel_size": 1, "trainer.device": "npu"}),
    Example({"actor.pipeline_parallel_size": 8, "trainer.device": "cuda"}),
)
