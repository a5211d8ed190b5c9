"""How many begin tokens stand before the prompts that a run recorded as ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from dumps.store.run_data import RunData

_FIELD = "prompt_ids"
_MAX_PROMPTS = 64


@dataclass(frozen=True, slots=True)
class Beginning:
    """What every prompt begins with.

    Args:
        num_bos: begin tokens before the first other token, the same in every prompt.
        num_prompts: prompts looked at.
        source, line: the first of them.
        ids: its first ids.
    """

    num_bos: int
    num_prompts: int
    source: str
    line: int
    ids: tuple[int, ...]


def beginning(data: RunData, bos: int) -> Beginning | None:
    """Return how the first recorded prompts begin; None where they differ or are not recorded."""
    prompts = list(_prompts(data))
    counts = {_num_leading(ids, bos) for _, _, ids in prompts}
    if len(counts) != 1:
        return None
    source, line, ids = prompts[0]
    return Beginning(counts.pop(), len(prompts), source, line, tuple(ids[:4]))


def _prompts(data: RunData) -> Iterator[tuple[str, int, list[int]]]:
    """Yield place and ids of the first prompts of the first dump."""
    batch = next(iter(data.rollout_batches()), None)
    if batch is None or _FIELD not in batch.extras:
        return
    for text, line in list(zip(batch.extras[_FIELD], batch.lines, strict=True))[:_MAX_PROMPTS]:
        ids = _ids(text)
        if ids:
            yield batch.source, int(line), ids


def _ids(text: object) -> list[int]:
    try:
        loaded = json.loads(text) if isinstance(text, str) else []
    except (json.JSONDecodeError, RecursionError):
        return []
    is_ids = isinstance(loaded, list) and all(type(number) is int for number in loaded)
    return loaded if is_ids else []


def _num_leading(ids: list[int], bos: int) -> int:
    return next((n for n, number in enumerate(ids) if number != bos), len(ids))
