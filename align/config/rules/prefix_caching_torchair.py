"""Prefix caching under TorchAir graphs has given random answers.

Source: vllm-ascend#1553: with both switched on MMLU was 0.2584, the level of guessing.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text

_CACHING, _GRAPH = "rollout.prefix_caching", "rollout.engine_options.torchair_graph"
FIELDS = (_CACHING, _GRAPH)


def rule(case: Case) -> Ruling | None:
    """Warn where one side alone has both."""
    both = [
        caching is True and graph is True
        for caching, graph in zip(case.values(_CACHING), case.values(_GRAPH), strict=True)
    ]
    if both[0] == both[1]:
        return None
    side = Text("reference", "参考") if both[0] else Text("candidate", "被测")
    return Ruling(
        Text(
            f"The {side.en} has prefix caching under TorchAir graphs: MMLU fell to 0.2584 with "
            "both, which is guessing (vllm-ascend#1553).",
            f"{side.zh}在 TorchAir 图模式下启用了前缀缓存：两者同时启用时 MMLU 曾降至 0.2584，"
            "即随机水平（vllm-ascend#1553）。",
        ),
        Severity.WARNING,
        Strength.SEMANTIC,
        instead=True,
        fix=Text("Switch one of the two off.", "关闭两者之一。"),
    )


FIRES = (Example(_CACHING, (False, True), both={_GRAPH: True}),)
SILENT = (
    Example(_CACHING, (False, True), both={_GRAPH: False}),
    Example(_CACHING, (False, True)),
)
