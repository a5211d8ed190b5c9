"""MindSpeed-RL's seq_length only cuts prompts.

Source: its data set cuts a prompt at ``seq_length``, after the filter has dropped the prompts that
reach ``max_prompt_length``; sample files have 2048 with 2048 + 2048.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text
from align.frameworks.config_table import number

FIELDS = ("data.sequence_length",)


def rule(case: Case) -> Ruling | None:
    """Call it harmless where no prompt that is kept reaches it, an error where one can."""
    lengths = number(case.reference.value), number(case.candidate.value)
    short = [
        None if length is None or limit is None else length < limit
        for length, limit in zip(lengths, case.numbers("data.max_prompt_length"), strict=True)
    ]
    if None in short:
        return None
    if any(short):
        return Ruling(
            Text(
                "It is below max_prompt_length on one side: longer prompts lose their end there.",
                "其中一侧小于 max_prompt_length：更长的 prompt 会被截去末尾。",
            ),
            Severity.ERROR,
            fix=Text(
                "seq_length must be at least max_prompt_length and at most max_model_len.",
                "seq_length 应不小于 max_prompt_length，且不大于 max_model_len。",
            ),
        )
    return Ruling(
        Text(
            "It is not below max_prompt_length on either side, so no prompt is cut.",
            "两侧均不小于 max_prompt_length，因此不会截断 prompt。",
        ),
        Severity.INFO,
        Strength.NONE,
    )


_MINDSPEED = ("mindspeed_rl", "mindspeed_rl")
FIRES = (
    Example(
        "data.sequence_length",
        (2048, 1024),
        both={"data.max_prompt_length": 2048},
        frameworks=_MINDSPEED,
    ),
    Example(
        "data.sequence_length",
        (2048, 4096),
        both={"data.max_prompt_length": 2048},
        frameworks=_MINDSPEED,
    ),
)
SILENT = (Example("data.sequence_length", (2048, 4096), frameworks=_MINDSPEED),)
