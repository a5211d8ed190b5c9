"""Compare two chat templates by what they render, not by their text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from align.core.text import Text

_SCRIPT = Path(__file__).with_name("sandbox.py")
_MAX_SECONDS = 20  # the script's own limit is 3 s of computing; this one also ends waiting

_SYSTEM = {"role": "system", "content": "Answer briefly."}
_ASK = {"role": "user", "content": "What is 1 + 1?"}
_TURNS = (_ASK, {"role": "assistant", "content": "2"}, {"role": "user", "content": "And 2 + 2?"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """One input of a template."""

    name: Text
    messages: tuple[Mapping[str, str], ...]
    add_generation_prompt: bool


CONVERSATIONS = tuple(
    Conversation(
        Text(
            f"{name.en}, add_generation_prompt {'on' if prompted else 'off'}",
            f"{name.zh}，add_generation_prompt {'开' if prompted else '关'}",
        ),
        messages,
        prompted,
    )
    for prompted in (True, False)
    for name, messages in (
        (Text("one question", "单个问题"), (_ASK,)),
        (Text("system prompt and question", "system prompt 加问题"), (_SYSTEM, _ASK)),
        (Text("three turns", "三轮对话"), _TURNS),
        (Text("system prompt and three turns", "system prompt 加三轮对话"), (_SYSTEM, *_TURNS)),
    )
)
"""What a training prompt looks like comes first: it is quoted where several differ."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The text of one conversation; without one, why: the template refused it, or failed."""

    text: str | None = None
    refused: str | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class TemplateDiff:
    """How two templates with different text render the same conversations.

    Args:
        differing: conversations that are rendered differently, with both renderings.
        failed: why some could not be rendered, None where all could.
    """

    differing: tuple[tuple[Conversation, Rendering, Rendering], ...]
    failed: str | None


def diff_templates(reference: str, candidate: str, tokens: Mapping[str, str]) -> TemplateDiff:
    """Render every conversation with both templates.

    Args:
        tokens: special tokens by name, such as ``bos_token``; the same for both sides, as they
            are compared on their own.
    """
    sides = [render(template, tokens) for template in (reference, candidate)]
    triples = list(zip(CONVERSATIONS, *sides, strict=True))
    return TemplateDiff(
        differing=tuple(t for t in triples if _differ(t[1], t[2])),
        failed=next((r.failed for side in sides for r in side if r.failed is not None), None),
    )


def render(template: str, tokens: Mapping[str, str]) -> Sequence[Rendering]:
    """Render every conversation in a process with bounds, one `Rendering` each."""
    values = [
        {**tokens, "messages": c.messages, "add_generation_prompt": c.add_generation_prompt}
        for c in CONVERSATIONS
    ]
    try:
        ran = subprocess.run(
            [sys.executable, str(_SCRIPT)],
            input=json.dumps({"template": template, "values": values}),
            capture_output=True,
            encoding="utf-8",
            timeout=_MAX_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [Rendering(failed=_reason(error))] * len(CONVERSATIONS)
    return [Rendering(**outcome) for outcome in json.loads(ran.stdout)]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"Python could not be started ({error.strerror})"
    return "stopped at the limit of time or memory"


def _differ(a: Rendering, b: Rendering) -> bool:
    """Tell whether both are known and differ; two refusals are alike, whatever they say."""
    if a.failed is not None or b.failed is not None:
        return False
    return a.text != b.text


def parting(reference: str, candidate: str) -> int:
    """Return where two texts part, as the number of characters they share before it."""
    pairs = enumerate(zip(reference, candidate, strict=False))
    shared = min(len(reference), len(candidate))
    return next((n for n, (a, b) in pairs if a != b), shared)
