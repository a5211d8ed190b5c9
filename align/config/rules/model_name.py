"""Folder names differ between machines; only names of published models say something."""

from __future__ import annotations

import re

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf
from align.core.finding import Severity, Strength
from align.core.text import Text

FIELDS = ("model.name", "model.tokenizer")

_PUBLISHED = re.compile(
    r"(qwen|llama|deepseek|mi[sx]tral|gemma|glm|phi|internlm|baichuan|smollm|minicpm|kimi)"
    r".*\d[\d._p]*b",
    re.IGNORECASE,
)


def rule(case: Case) -> Ruling | None:
    """Call it a mere path where one of the names is not that of a published model."""
    if all(_is_published(v) for v in (case.reference.value, case.candidate.value)):
        return None
    return Ruling(
        Text(
            "These are folder names, and a folder name says nothing about the model in it.",
            "这些是目录名，目录名不能说明其中的模型。",
        ),
        Severity.INFO,
        Strength.NONE,
    )


def _is_published(value: ConfigLeaf) -> bool:
    return isinstance(value, str) and bool(_PUBLISHED.search(value.rstrip("/").rpartition("/")[2]))


FIRES = (Example("model.name", ("/data/ckpt/step_500", "Qwen/Qwen2.5-7B")),)
SILENT = (Example("model.name", ("/data/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct")),)
