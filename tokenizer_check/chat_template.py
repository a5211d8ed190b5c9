"""Compare two chat templates by what they render, not by their text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import Enum
from pathlib import Path

from align.core.text import Text
from dumps.readers.tokenizer_content import Json

_SCRIPT = Path(__file__).with_name("sandbox.py")
_MAX_SECONDS = 20  # the script's own limit is 3 s of computing; this one also ends waiting
_MAX_COMPARED = 4000  # words and marks of one rendering
_UNIT = re.compile(r"<[^<>\s]{1,40}>|\w+|\s|[^\w\s]")

_SYSTEM: dict[str, Json] = {"role": "system", "content": "Answer briefly."}
_ASK: dict[str, Json] = {"role": "user", "content": "What is 1 + 1?"}
_ANSWER: dict[str, Json] = {"role": "assistant", "content": "2"}
_TURNS = (_ASK, _ANSWER, {"role": "user", "content": "And 2 + 2?"})
_THOUGHT: dict[str, Json] = {
    "role": "assistant",
    "content": "<think>\none and one\n</think>\n\n2",
}
_CALL: dict[str, Json] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 1}}}
    ],
}
_RESULT: dict[str, Json] = {"role": "tool", "name": "add", "content": "2"}
_TOOLS: Json = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
]


class Scope(str, Enum):
    """Which runs a conversation is like."""

    EVERY = "every"
    THINKING = "thinking"  # runs that set enable_thinking or have reasoning in earlier turns
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Conversation:
    """One input of a template; ``values`` are further ones, such as ``tools``."""

    name: Text
    messages: tuple[Mapping[str, Json], ...]
    add_generation_prompt: bool
    scope: Scope = Scope.EVERY
    values: Mapping[str, Json] = field(default_factory=dict)

    @property
    def has_system(self) -> bool:
        """Whether it brings a system prompt of its own."""
        return any(message["role"] == "system" for message in self.messages)


_BASIC = tuple(
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
_SPECIAL = (
    *(
        Conversation(
            Text(f"one question, enable_thinking={state}", f"单个问题，enable_thinking={state}"),
            (_ASK,),
            True,
            Scope.THINKING,
            {"enable_thinking": state},
        )
        for state in (True, False)
    ),
    Conversation(
        Text("reasoning in an earlier turn", "前一轮含推理内容"),
        (_ASK, _THOUGHT, _TURNS[2]),
        True,
        Scope.THINKING,
    ),
    Conversation(
        Text("question with tools", "带工具的问题"),
        (_ASK,),
        True,
        Scope.TOOLS,
        {"tools": _TOOLS},
    ),
    Conversation(
        Text("tool call and its result", "工具调用及其结果"),
        (_SYSTEM, _ASK, _CALL, _RESULT),
        True,
        Scope.TOOLS,
        {"tools": _TOOLS},
    ),
)
CONVERSATIONS = (*_BASIC, *_SPECIAL)
"""What a training prompt looks like comes first: it is quoted where several differ."""

SINGLE_TURNS = _BASIC[:2]
"""The prompts that MindSpeed-RL's data preparation makes too: one question, ready to answer."""


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
        rendered: conversations that both rendered or refused.
        differing: conversations that are rendered differently, with both renderings.
        failed: why some could not be rendered, None where all could.
    """

    rendered: tuple[Conversation, ...]
    differing: tuple[tuple[Conversation, Rendering, Rendering], ...]
    failed: str | None


def diff_templates(reference: str, candidate: str, tokens: Mapping[str, str]) -> TemplateDiff:
    """Render every conversation with both templates.

    Args:
        tokens: special tokens by name, such as ``bos_token``; the same for both sides, as they
            are compared on their own.
    """
    ours, theirs = (render(template, tokens) for template in (reference, candidate))
    return diff_renderings(CONVERSATIONS, ours, theirs)


def diff_renderings(
    conversations: Sequence[Conversation],
    reference: Sequence[Rendering],
    candidate: Sequence[Rendering],
) -> TemplateDiff:
    """Compare two renderings of the same conversations."""
    triples = list(zip(conversations, reference, candidate, strict=True))
    known = [t for t in triples if t[1].failed is None and t[2].failed is None]
    return TemplateDiff(
        rendered=tuple(conversation for conversation, _, _ in known),
        differing=tuple(t for t in known if t[1].text != t[2].text),
        failed=next(
            (
                reason
                for conversation, *sides in triples
                for reason in (side.failed for side in sides)
                if reason is not None and conversation.scope is Scope.EVERY
            ),
            None,
        ),
    )


def render(
    template: str,
    tokens: Mapping[str, str],
    conversations: Sequence[Conversation] = CONVERSATIONS,
) -> Sequence[Rendering]:
    """Render conversations in a process with bounds, one `Rendering` each."""
    values = [
        {
            **tokens,
            **c.values,
            "messages": c.messages,
            "add_generation_prompt": c.add_generation_prompt,
        }
        for c in conversations
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
        return [Rendering(failed=_reason(error))] * len(conversations)
    return [Rendering(**outcome) for outcome in json.loads(ran.stdout)]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"Python could not be started ({error.strerror})"
    return "stopped at the limit of time or memory"


def parting(reference: str, candidate: str) -> int:
    """Return where two texts part, as the number of characters they share before it."""
    pairs = enumerate(zip(reference, candidate, strict=False))
    shared = min(len(reference), len(candidate))
    return next((n for n, (a, b) in pairs if a != b), shared)


def spans(reference: str, candidate: str) -> list[tuple[str, str]]:
    """Return the pieces of two renderings that differ, each as it stands on both sides."""
    ours, theirs = (_UNIT.findall(text)[:_MAX_COMPARED] for text in (reference, candidate))
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    return [
        ("".join(ours[a:b]), "".join(theirs[c:d]))
        for what, a, b, c, d in matcher.get_opcodes()
        if what != "equal"
    ]
