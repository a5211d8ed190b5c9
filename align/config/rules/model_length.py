"""The engine's own length limit matters only below prompt plus response."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text

FIELDS = ("rollout.max_model_len",)


def rule(case: Case) -> Ruling | None:
    """Call it harmless where both sides can generate sequences of the same length."""
    limits = case.values("derived.length_limit")
    if None in limits or limits[0] != limits[1]:
        return None
    return Ruling(
        Text(
            f"Prompt and response end at {limits[0]} tokens on both sides anyway.",
            f"两侧的 prompt 加 response 总长上限都是 {limits[0]} 个 token。",
        ),
        Severity.INFO,
        Strength.NONE,
    )


_LENGTHS = {"data.max_prompt_length": 2048, "data.max_response_length": 2048}
FIRES = (
    Example("rollout.max_model_len", (None, 4096), both=_LENGTHS),
    Example("rollout.max_model_len", (8192, 4096), both=_LENGTHS),
)
SILENT = (Example("rollout.max_model_len", (4096, 3072), both=_LENGTHS),)
