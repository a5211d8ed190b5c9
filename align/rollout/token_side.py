"""The rows of one run to compare with the other's: a row a sequence, whatever recorded it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from align.rollout.token_row import TokenRow
from align.rollout.token_rows import EngineRow, TokenRows


def rows_by_step(tokens: TokenRows) -> Mapping[int | None, Sequence[TokenRow]]:
    """Return each step's rows: the trainer's, else those of another dump, else the engine's."""
    found: dict[int | None, list[TokenRow]] = defaultdict(list)
    for step in tokens.trainer:
        found[step.step] += _with_texts(step.rows(), tokens.engine.get(step.step, ()))
    trained = set(found)
    for batch in tokens.plain:
        if batch.step not in trained:
            found[batch.step] += batch.rows
    for number, rows in tokens.engine.items():
        if number not in found:
            found[number] = [_of_engine(row, place) for place, row in enumerate(rows)]
    return {step: rows for step, rows in found.items() if rows}


def _with_texts(rows: Sequence[TokenRow], engine: Sequence[EngineRow]) -> list[TokenRow]:
    """Add the prompt's text as the engine's dump has it."""
    texts = {row.prompt: row.prompt_text for row in engine if row.prompt_text}
    return [replace(row, prompt_text=texts.get(row.prompt)) for row in rows]


def _of_engine(row: EngineRow, place: int) -> TokenRow:
    ids = np.array((*row.prompt, *row.response), np.int64)
    mask = np.concatenate([np.zeros(len(row.prompt), np.int64), np.array(row.mask, np.int64)])
    return TokenRow(
        source=row.place[0],
        row=place,
        step=None,
        ids=ids,
        attended=np.ones(len(ids), np.bool_),
        mask=mask,
        split=len(row.prompt),
        line=row.place[1],
        stopped=None if row.finish_reason is None else row.finish_reason == "stop",
        prompt_text=row.prompt_text or None,
        response_text=row.text or None,
    )
