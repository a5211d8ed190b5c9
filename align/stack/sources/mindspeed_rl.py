"""MindSpeed-RL's data sets: tokenised beforehand (.bin/.idx), or the records that it tokenises."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import ConfigError, DumpError
from align.stack.row import Row
from align.stack.sources import records
from align.stack.sources.indexed import read_sequences
from align.stack.sources.records import Record, column
from align.stack.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from align.stack.config import StackConfig

# MindSpeed-RL's names of the parts of a row, and the column each stands in by default.
_COLUMNS: Mapping[str, str] = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "history": "",
    "system": "",
}
_LABELS = "labels"  # the response, under the name it has at training time


def is_indexed(file: str) -> bool:
    """Tell whether a path is the output_prefix of preprocessed data, or one of its files."""
    prompts = _prompts_of(file)
    return prompts.with_name(f"{prompts.name}.idx").is_file()


def read_indexed(file: str, config: StackConfig) -> list[Row]:
    """Read ``PREFIX_packed_{input_ids,labels,…}_document.{bin,idx}``.

    ``stack.data.dataset_additional_keys`` says which columns there are beside input_ids. All are
    token ids; labels, task and data_source are decoded, and a row without a task has the task
    "mindspeed_rl".

    Raises:
        DumpError: A file cannot be read, or the columns have different numbers of rows.
    """
    prompts_file = _prompts_of(file)
    prompts = read_sequences(prompts_file)
    decode = load_tokenizer(config).decode
    columns = {
        key: [str(decode(ids.tolist())) for ids in read_sequences(_column_of(prompts_file, key))]
        for key in config.stack.data.dataset_additional_keys
    }
    for key, values in columns.items():
        if len(values) != len(prompts):
            raise DumpError(
                where=str(_column_of(prompts_file, key)),
                problem=f"has {len(values)} rows, and input_ids has {len(prompts)}",
                fix="preprocess the data set again",
            )
    return [
        _row({key: values[i] for key, values in columns.items()}, prompt_ids=tuple(ids.tolist()))
        for i, ids in enumerate(prompts)
    ]


def read_records(file: str, config: StackConfig) -> list[Row]:
    """Read JSON, JSON lines or parquet through ``stack.data.map_keys``.

    A part mapped to "" is left out; query follows the prompt on a line of its own; history gives
    earlier turns; of a list of responses the last is the label. ``dataset_additional_keys`` are
    kept under their own names, ``labels`` excepted, which is the response.

    Raises:
        ConfigError: map_keys names a part there is not.
        DumpError: A column is missing.

    Source: MindSpeed-RL handler_utils and `R1AlpacaStyleInstructionHandler`.
    """
    columns = _mapped(config.stack.data.map_keys)
    extra = [key for key in config.stack.data.dataset_additional_keys if key != _LABELS]
    return [
        _record_row(record, columns, extra, where)
        for where, record in records.read_records(Path(file))
    ]


def _mapped(map_keys: Mapping[str, Any]) -> dict[str, str]:
    for part in map_keys:
        if part not in _COLUMNS:
            raise ConfigError(
                where="stack.data.map_keys",
                key=part,
                problem="is no part of a row",
                fix=f"use {', '.join(_COLUMNS)}",
            )
    return {**_COLUMNS, **{part: str(name or "") for part, name in map_keys.items()}}


def _record_row(record: Record, columns: Mapping[str, str], extra: list[str], where: str) -> Row:
    values = {part: column(record, name, where) for part, name in columns.items() if name}
    kept = {key: column(record, key, where) for key in extra}
    turns = [
        {"role": role, "content": str(text)}
        for turn in values.get("history") or ()
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    asked = "\n".join(str(values[part]) for part in ("prompt", "query") if values.get(part))
    answer = values.get("response") or ""
    return _row(
        {**kept, _LABELS: answer[-1] if isinstance(answer, list) else str(answer)},
        messages=(*turns, {"role": "user", "content": asked}),
        system=values.get("system") or None,
    )


def _row(columns: Mapping[str, Any], **parts: Any) -> Row:
    source = str(columns.get("data_source", "mindspeed_rl"))
    return Row(
        index=0,
        data_source=source,
        task=str(columns.get("task", source)),
        ground_truth=str(columns.get(_LABELS, "")),
        extra={k: v for k, v in columns.items() if k not in (_LABELS, "task", "data_source")},
        **{"messages": (), **parts},
    )


def _prompts_of(file: str) -> Path:
    """Return the path of the prompts' files, without their endings."""
    bare = file.removesuffix(".idx").removesuffix(".bin")
    if not bare.endswith("_document"):
        bare += "_packed_input_ids_document"
    return Path(bare)


def _column_of(prompts: Path, key: str) -> Path:
    return prompts.with_name(prompts.name.replace("_packed_input_ids_", f"_packed_{key}_"))
