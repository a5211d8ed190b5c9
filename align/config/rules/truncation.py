"""What happens to overlong prompts matters only where there are any."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text

FIELDS = ("data.truncation",)


def rule(case: Case) -> Ruling | None:
    """Call it harmless where overlong prompts are filtered out on both sides."""
    filters = case.values("data.length_filter")
    if None in filters or "no filter" in filters:
        return None
    return Ruling(
        Text(
            "Longer prompts are filtered out on both sides before.",
            "两侧都已事先过滤掉过长的 prompt。",
        ),
        Severity.INFO,
        Strength.NONE,
    )


FIRES = (
    Example(
        "data.truncation",
        ("error", "left"),
        both={"data.length_filter": "length <= max_prompt_length"},
    ),
)
SILENT = (Example("data.truncation", ("error", "left"), both={"data.length_filter": "no filter"}),)
