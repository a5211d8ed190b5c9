"""MindSpeed-RL keeps prompts below the limit, verl those up to it."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("data.length_filter",)


def rule(case: Case) -> Ruling | None:
    """Call it minor where both filter and only prompts of exactly the limit are treated apart."""
    if "no filter" in (case.reference.value, case.candidate.value):
        return None
    return Ruling(
        Text(
            "Only prompts of exactly the limit are treated apart: compare the number of rows kept.",
            "只有长度恰好等于上限的 prompt 处理不同：请对比保留的行数。",
        ),
        Severity.INFO,
    )


FIRES = (
    Example("data.length_filter", ("length <= max_prompt_length", "length < max_prompt_length")),
)
SILENT = (Example("data.length_filter", ("no filter", "length < max_prompt_length")),)
