"""Rows of a raw data set to columns, each row keeping its number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from align.core.data_set import DataSet
from align.core.errors import DumpError
from align.core.metric import Skipped
from align.core.text import Text
from dumps.readers.data_fields import FieldMap, as_chat, as_question, as_text, take

_MAX_SKIPPED = 100

Place = tuple[int, Mapping[str, Any] | str]
"""(line or row number, the row, or why there is none)."""


def data_set(path: Path, format: str, rows: Iterable[Place], fields: FieldMap) -> DataSet:
    """Gather rows; one that has no question is counted, and keeps its place as an empty row.

    Raises:
        DumpError: No row has a question.
    """
    prompts: list[str] = []
    labels: list[str | None] = []
    systems: list[str | None] = []
    chats: list[tuple[tuple[str, str], ...] | None] = []
    skipped: list[Skipped] = []
    num_skipped = 0
    for place, row in rows:
        prompt, label, system, chat = "", None, None, None
        why = row if isinstance(row, str) else None
        if not isinstance(row, str):
            value = take(row, fields.prompt)
            why = f"no {fields.prompt!r}" if value in (None, "", []) else None
            chat = as_chat(value)
            prompt, system = as_question(value)
            query = as_text(take(row, fields.query)) if fields.query else None
            prompt = f"{prompt}\n{query}" if query else prompt
            label = as_text(take(row, fields.label)) if fields.label else None
            system = as_text(take(row, fields.system)) if fields.system else system
        if why is not None:
            num_skipped += 1
            skipped += [Skipped(place, why)] if len(skipped) < _MAX_SKIPPED else []
        prompts.append(prompt)
        labels.append(label)
        systems.append(system)
        chats.append(chat)
    if num_skipped == len(prompts):
        why = skipped[0].why if skipped else "it holds no row"
        raise DumpError(
            where=str(path),
            problem=f"no row of the data set can be read ({why})",
            fix="copy the file again, or name its fields with --map-key",
        )
    return DataSet(
        source=str(path),
        format=format,
        num_rows=len(prompts),
        prompts=prompts,
        labels=labels if any(label is not None for label in labels) else None,
        chats=None if all(chat is None for chat in chats) else [chat or () for chat in chats],
        system=systems if any(system is not None for system in systems) else None,
        skipped=tuple(skipped),
        num_skipped=num_skipped,
        notes=(_taken(fields),),
    )


def _taken(fields: FieldMap) -> Text:
    return Text(
        f"question: {fields.prompt!r}, label: {fields.label!r}",
        f"题目字段：{fields.prompt!r}，标准答案字段：{fields.label!r}",
    )
