"""Data parallelism inside the engine, together with expert parallelism, has cost accuracy.

Source: vllm-ascend#5544: verl with vllm-ascend 0.11.0, dp + ep + tp in server mode: responses
repeat themselves; tp + ep alone is right.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text
from align.frameworks.config_table import number

FIELDS = ("rollout.data_parallel_size",)


def rule(case: Case) -> Ruling | None:
    """Warn where experts are split and one side is data parallel."""
    sizes = number(case.reference.value), number(case.candidate.value)
    experts = case.numbers("rollout.expert_parallel_size")
    risky = [(dp or 1) > 1 and (ep or 1) > 1 for dp, ep in zip(sizes, experts, strict=True)]
    if risky[0] == risky[1]:
        return None
    side = Text("reference", "参考") if risky[0] else Text("candidate", "被测")
    return Ruling(
        Text(
            f"The {side.en} combines data and expert parallelism in the engine: with vllm-ascend "
            "0.11.0 responses then repeat themselves (vllm-ascend#5544).",
            f"{side.zh}的引擎同时使用数据并行与专家并行：vllm-ascend 0.11.0 下回复会出现重复"
            "（vllm-ascend#5544）。",
        ),
        Severity.WARNING,
        Strength.SEMANTIC,
        instead=True,
        fix=Text(
            "Generate with tensor and expert parallelism alone and compare the texts.",
            "仅用张量并行与专家并行生成，并对比文本。",
        ),
    )


FIRES = (Example("rollout.data_parallel_size", (1, 4), both={"rollout.expert_parallel_size": 8}),)
SILENT = (
    Example("rollout.data_parallel_size", (1, 4), both={"rollout.expert_parallel_size": 1}),
    Example("rollout.data_parallel_size", (2, 4), both={"rollout.expert_parallel_size": 8}),
)
