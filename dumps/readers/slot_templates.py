"""MindSpeed-RL's ``templates.json``: prompts as slots of text and special tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from align.core.errors import DumpError

MAX_BYTES = 16 << 20
_CONTENT = "{{content}}"

Slots = tuple[str | frozenset[str], ...]  # text, or names of special tokens such as bos_token


@dataclass(frozen=True, slots=True)
class SlotTemplate:
    """One named template.

    Args:
        default_system: system prompt where a row has none; "" for none.
        replace_eos: take the first of ``stop_words`` for the end token when data is prepared.
    """

    name: str
    user: Slots
    system: Slots
    prefix: Slots
    default_system: str
    stop_words: tuple[str, ...]
    replace_eos: bool

    def prompt(self, question: str, system: str | None, tokens: Mapping[str, str]) -> str:
        """Return the text of one question as data preparation writes it, ready for an answer.

        Args:
            tokens: special tokens by name, such as ``bos_token``.

        Source: MindSpeed-RL `Template._encode`, first turn.
        """
        system = system or self.default_system
        slots = (*self.prefix, *(_filled(self.system, system) if system else ()))
        return "".join(
            slot if isinstance(slot, str) else _token(slot, tokens)
            for slot in (*slots, *_filled(self.user, question))
        )


def read_slot_templates(path: Path) -> Mapping[str, SlotTemplate]:
    """Read every template by name.

    Raises:
        DumpError: It is no list of named templates.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
        loaded = json.loads(path.read_bytes().decode("utf-8-sig"))
        return {str(each["name"]): _template(each) for each in loaded}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DumpError(
            where=str(path),
            problem=f"is no list of named templates ({error})",
            fix="give MindSpeed-RL's configs/model/templates.json",
        ) from error


def _template(values: Mapping[str, Any]) -> SlotTemplate:
    def slots(part: str, default: Slots) -> Slots:
        given = (values.get(f"format_{part}") or {}).get("slots")
        if given is None:
            return default
        return tuple(slot if isinstance(slot, str) else frozenset(slot) for slot in given)

    return SlotTemplate(
        name=str(values["name"]),
        user=slots("user", (_CONTENT,)),
        system=slots("system", (_CONTENT,)),
        prefix=slots("prefix", ()),
        default_system=str(values.get("default_system") or ""),
        stop_words=tuple(map(str, values.get("stop_words") or ())),
        replace_eos=values.get("replace_eos") is True,
    )


def _filled(slots: Slots, content: str) -> Slots:
    return tuple(s.replace(_CONTENT, content) if isinstance(s, str) else s for s in slots)


def _token(names: frozenset[str], tokens: Mapping[str, str]) -> str:
    return next((tokens[n] for n in ("bos_token", "eos_token") if n in names and n in tokens), "")
