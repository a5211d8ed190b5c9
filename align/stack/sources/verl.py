"""verl's data sets: parquet or JSON lines, one prompt a row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.stack.row import Messages, Row
from align.stack.sources.records import Record, column, read_records

if TYPE_CHECKING:
    from align.stack.config import StackConfig


def read(file: str, config: StackConfig) -> list[Row]:
    """Read rows of ``data.prompt_key``, ``data.reward_fn_key`` and reward_model.ground_truth.

    The task is the column ``task``, else extra_info.task, else the data source.

    Raises:
        DumpError: A column is missing, or the prompt is no list of messages.
    """
    return [_row(record, where, config) for where, record in read_records(Path(file))]


def _row(record: Record, where: str, config: StackConfig) -> Row:
    data = config.data
    source = str(column(record, data.reward_fn_key, where))
    reward = column(record, "reward_model", where) or {}
    extra = dict(record.get("extra_info") or {})
    used = {data.prompt_key, data.reward_fn_key, "reward_model", "extra_info"}
    return Row(
        index=0,
        data_source=source,
        task=str(record.get("task") or extra.get("task") or source),
        messages=_messages(column(record, data.prompt_key, where), where, data.prompt_key),
        ground_truth=str(column(reward, "ground_truth", where)),
        extra={**extra, **{key: value for key, value in record.items() if key not in used}},
    )


def _messages(value: Any, where: str, key: str) -> Messages:
    if isinstance(value, list) and all(
        isinstance(each, dict) and {"role", "content"} <= set(each) for each in value
    ):
        return tuple(value)
    raise DumpError(
        where=where,
        key=key,
        problem="is no list of {role, content} messages",
        fix="write the prompt as a list of chat messages, as verl's preprocessing does",
    )
