"""Data, expert and tensor parallelism together spoil the rollout on NPU.

Source: vllm-ascend issue 5544 (verl with 0.11.0 in server mode: repetition and broken grammar with
dp, ep and tp; tp and ep alone are fine).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_SIZES = (
    "rollout.data_parallel_size",
    "rollout.expert_parallel_size",
    "rollout.tensor_parallel_size",
)


def check(run: OneRun) -> Iterator[Finding]:
    """Report the three together on an NPU."""
    sizes = run.numbers(*_SIZES)
    if not run.on_npu or sizes is None or min(sizes) <= 1:
        return
    yield problem(
        run,
        "rollout_data_parallel",
        Severity.WARNING,
        Effect(Rung.ROLLOUT),
        run.known(*_SIZES),
        Text(
            "the rollout uses data, expert and tensor parallelism together",
            "rollout 同时使用数据、专家与张量并行",
        ),
        Text(
            "vllm-ascend 0.11.0 in server mode lost accuracy with the three (repetition, broken "
            "grammar); tensor and expert parallelism without data parallelism did not.",
            "vllm-ascend 0.11.0 服务模式下三者同时开启曾出现精度下降（重复、语法错误）；"
            "仅张量与专家并行则正常。",
        ),
        Text(
            "Set the rollout's data parallel size to 1 and look at the text of the responses.",
            "将 rollout 的数据并行度设为 1，并检查回复文本。",
        ),
    )


_THREE = dict.fromkeys(_SIZES, 2) | {"trainer.world_size": 8}
FIRES = (Example(_THREE, facts={"device": "npu"}),)
SILENT = (
    Example(_THREE | {"rollout.data_parallel_size": 1}, facts={"device": "npu"}),
    Example(_THREE, facts={"device": "cuda"}),
)
