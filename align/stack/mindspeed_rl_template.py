"""Prompt templates in the format of MindSpeed-RL's templates.json.

A template is slots of text and special tokens for each kind of turn. Every turn is tokenised on
its own, which can split text at a seam differently from a chat template that renders it in one
piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from align.core.errors import ConfigError
from align.stack.row import Messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Slots = tuple[str | frozenset[str], ...]  # text, or names of special tokens such as bos_token

_CONTENT = "{{content}}"
_BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    "empty": {"name": "empty"},
    "qwen": {
        "name": "qwen",
        "format_user": {
            "slots": [f"<|im_start|>user\n{_CONTENT}<|im_end|>\n<|im_start|>assistant\n"]
        },
        "format_system": {"slots": [f"<|im_start|>system\n{_CONTENT}<|im_end|>\n"]},
        "format_separator": {"slots": ["\n"]},
        "default_system": "You are a helpful assistant.",
    },
}


@dataclass(frozen=True, slots=True)
class Template:
    """The parts of a template that a prompt is made of."""

    user: Slots
    system: Slots
    observation: Slots
    separator: Slots
    prefix: Slots
    default_system: str


@cache
def read_template(name: str, path: str | None = None) -> Template:
    """Read a template by name, from a templates.json or from the built-in "empty" and "qwen".

    Raises:
        ConfigError: The file cannot be read, or has no template of that name.
    """
    if path is None:
        known = dict(_BUILT_IN)
    else:
        try:
            known = {each["name"]: each for each in orjson.loads(Path(path).read_bytes())}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                where=path,
                problem=f"is no list of named templates ({type(error).__name__})",
                fix="give MindSpeed-RL's configs/model/templates.json",
            ) from error
    if name not in known:
        raise ConfigError(
            where=path or "stack.data.prompt_type",
            key=name,
            problem="is no template",
            fix=f"use {', '.join(sorted(known))}, or set stack.data.prompt_type_path",
        )
    return _template(known[name])


def encode(
    template: Template,
    tokenizer: PreTrainedTokenizerFast,
    messages: Messages,
    system: str | None = None,
) -> list[int]:
    """Tokenise the prompts of a conversation; answers in it are left out, as MindSpeed-RL does.

    Source: MindSpeed-RL `Template._encode` and `R1AlpacaStyleInstructionHandler`, which keeps the
    source ids of every turn and drops the target ids of all.
    """
    ids: list[int] = []
    system = system or template.default_system
    for turn, message in enumerate(messages):
        slots: Slots = ()
        if turn == 0:
            slots += template.prefix + (_filled(template.system, system) if system else ())
        elif turn % 2 == 0:
            slots += template.separator
        if message["role"] == "assistant":
            continue
        kind = template.observation if message["role"] == "observation" else template.user
        for slot in slots + _filled(kind, message["content"]):
            ids += _slot_ids(slot, tokenizer)
    return ids


def _template(values: Mapping[str, Any]) -> Template:
    def slots(part: str, default: Slots) -> Slots:
        given = (values.get(f"format_{part}") or {}).get("slots")
        if given is None:
            return default
        return tuple(slot if isinstance(slot, str) else frozenset(slot) for slot in given)

    user = slots("user", (_CONTENT,))
    return Template(
        user=user,
        system=slots("system", (_CONTENT,)),
        observation=slots("observation", user),
        separator=slots("separator", ()),
        prefix=slots("prefix", ()),
        default_system=str(values.get("default_system", "")),
    )


def _filled(slots: Slots, content: str) -> Slots:
    return tuple(s.replace(_CONTENT, content) if isinstance(s, str) else s for s in slots)


def _slot_ids(slot: str | frozenset[str], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    if isinstance(slot, str):
        return list(tokenizer.encode(slot, add_special_tokens=False)) if slot else []
    names = [name for name in ("bos_token_id", "eos_token_id") if name[:-3] in slot]
    found = [getattr(tokenizer, name) for name in names]
    return [number for number in found if number is not None][:1]
