"""Which recorded row each row of a V0 batch stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dumps.inject.match import place_rows
from dumps.inject.recorded import Prompt, Step

Lists = tuple[list[int], list[int]]


def places_of_rows(
    step: Step, batch: Any, text_of: Callable[[Sequence[int]], str]
) -> list[int | None]:
    """Return places in the recorded step, None for rows of prompts that are not recorded.

    Args:
        batch: a DataProto with ids, padded.
        text_of: decodes prompts without special tokens, for records that have text alone.
    """
    indexes = batch.non_tensor_batch.get("index", [None] * len(batch.batch["input_ids"]))
    needs_text = any(group.prompt.ids is None for group in step.groups)
    rows = []
    for index, (prompt, response) in zip(indexes, unpadded(batch.batch), strict=True):
        text = text_of(prompt) if needs_text else None
        number = None if index is None else int(index)
        rows.append((Prompt(tuple(prompt), text, number), response))
    return place_rows(step, rows)


def unpadded(tensors: Any) -> Iterator[Lists]:
    """Yield prompt and response ids of every row."""
    ids, seen = tensors["input_ids"], tensors["attention_mask"] != 0
    split = ids.shape[1] - tensors["responses"].shape[1]
    for row, on in zip(ids, seen, strict=True):
        yield row[:split][on[:split]].tolist(), row[split:][on[split:]].tolist()
