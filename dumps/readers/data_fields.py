"""Which fields of a raw row are the question, the label and the system prompt."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

_PROMPTS = ("prompt", "messages", "problem", "question", "instruction", "query", "conversations")
_LABELS = (
    *("reward_model.ground_truth", "ground_truth", "answer", "label", "labels", "solution"),
    *("response", "output", "final_answer"),
)
_SYSTEMS = ("system", "system_prompt")
_NO_QUERY = "input"  # Alpaca's second half of the question


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Names of the fields, as MindSpeed-RL's ``map_keys`` has them; None where there is none.

    A dot goes into a field that holds fields.
    """

    prompt: str
    label: str | None = None
    query: str | None = None
    system: str | None = None

    @classmethod
    def of_map_keys(cls, map_keys: Mapping[str, str]) -> FieldMap:
        """Take ``{"prompt": "problem", "query": "", "response": "answer", "system": ""}``."""
        names = {key: name or None for key, name in map_keys.items()}
        return cls(
            names.get("prompt") or "prompt",
            names.get("response"),
            names.get("query"),
            names.get("system"),
        )


def guess_fields(names: Collection[str]) -> FieldMap | None:
    """Guess the fields by their usual names, None where none can be the question.

    Args:
        names: names of one row's fields, dotted for fields within fields.
    """
    prompt = next((name for name in _PROMPTS if name in names), None)
    if prompt is None:
        return None
    return FieldMap(
        prompt,
        next((name for name in _LABELS if name in names), None),
        _NO_QUERY if prompt == "instruction" and _NO_QUERY in names else None,
        next((name for name in _SYSTEMS if name in names), None),
    )


def dotted_names(row: Mapping[str, Any]) -> set[str]:
    """Name a row's fields and, with a dot, those one level below."""
    names = set(map(str, row))
    for key, value in row.items():
        if isinstance(value, Mapping):
            names |= {f"{key}.{inner}" for inner in value}
    return names


def take(row: Mapping[str, Any], name: str | None) -> Any:
    """Return a field by its dotted name, None where the row has none."""
    if name is None or name in row:
        return row.get(name or "")
    outer, _, inner = name.partition(".")
    value = row.get(outer)
    return value.get(inner) if inner and isinstance(value, Mapping) else None


def as_question(value: Any) -> tuple[str, str | None]:
    """Return the text of a question, and its system prompt if it is a chat that has one."""
    chat = as_chat(value)
    if chat is None:
        return as_text(value) or "", None
    system = [content for role, content in chat if role == "system"]
    others = [content for role, content in chat if role != "system"]
    return "\n".join(others), "\n".join(system) if system else None


def as_chat(value: Any) -> tuple[tuple[str, str], ...] | None:
    """Return (role, content) of every turn; None for what is no chat."""
    if isinstance(value, list | tuple) and all(isinstance(turn, Mapping) for turn in value):
        return tuple((str(_role(turn)), _content(turn)) for turn in value)
    return None


def as_text(value: Any) -> str | None:
    """Return text as it is and anything else as its JSON; None stays None."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _role(turn: Mapping[str, Any]) -> Any:
    return turn.get("role", turn.get("from"))


def _content(turn: Mapping[str, Any]) -> str:
    return as_text(turn.get("content", turn.get("value"))) or ""
