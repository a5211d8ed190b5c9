"""The engine's own length limit matters only below prompt plus response."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text
from align.frameworks.config_table import number

FIELDS = ("rollout.max_model_len",)


def rule(case: Case) -> Ruling | None:
    """Call it harmless where neither engine ends a response before its own limit."""
    prompts = map(number, case.values("data.max_prompt_length"))
    responses = map(number, case.values("data.max_response_length"))
    limits = map(number, (case.reference.value, case.candidate.value))
    for prompt, response, limit in zip(prompts, responses, limits, strict=True):
        if prompt is None or response is None or (limit is not None and limit < prompt + response):
            return None
    return Ruling(
        Text(
            "It is not below prompt plus response on either side, so it ends nothing early.",
            "两侧该值都不小于 prompt 与回复长度之和，因此不会提前截断。",
        ),
        Severity.INFO,
        Strength.NONE,
    )


_LENGTHS = {"data.max_prompt_length": 2048, "data.max_response_length": 2048}
FIRES = (
    Example("rollout.max_model_len", (None, 4096), both=_LENGTHS),
    Example("rollout.max_model_len", (8192, 4096), both=_LENGTHS),
    Example(
        "rollout.max_model_len",
        (None, 4096),
        reference={"data.max_prompt_length": 512, "data.max_response_length": 1024},
        candidate=_LENGTHS,
    ),
)
SILENT = (Example("rollout.max_model_len", (4096, 3072), both=_LENGTHS),)
