"""Two file names of reward code can hold the same code; the name of a built-in reward cannot."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("reward.function",)


def rule(case: Case) -> Ruling | None:
    """Only warn where both values are files."""
    names = (case.reference.value, case.candidate.value)
    if not all(isinstance(name, str) and name.endswith(".py") for name in names):
        return None
    return Ruling(
        Text(
            "The names of the two files differ; whether their code does is not recorded here.",
            "两个文件名不同；其代码是否不同此处没有记录。",
        ),
        Severity.WARNING,
    )


FIRES = (Example("reward.function", ("/gpu/reward.py", "/npu/reward_v2.py")),)
SILENT = (
    Example("reward.function", (None, "/npu/reward.py")),
    Example(
        "reward.function",
        (("acc",), ("base_acc",)),
        frameworks=("mindspeed_rl", "mindspeed_rl"),
    ),
)
