"""Which of a run's data sets it trains on, as one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import PurePosixPath
from typing import TypeVar

from align.core.data_set import DataSet

Item = TypeVar("Item")

_EVALUATION = re.compile(r"(?:^|[^a-z])(?:test|val|valid|validation|eval|dev)(?:[^a-z]|$)")


def training_set(found: Sequence[DataSet], train_files: Sequence[str]) -> DataSet | None:
    """Choose by the names the configuration has; else the only one that is no test set.

    Returns:
        Several files as one data set, in the configuration's order; None where it is not clear.
    """
    named = [_find(found, name) for name in train_files]
    if named and all(data is not None for data in named):
        return joined([data for data in named if data is not None])
    others = [d for d in found if not _EVALUATION.search(PurePosixPath(d.source).stem.lower())]
    return others[0] if len(others) == 1 else None


def joined(parts: Sequence[DataSet]) -> DataSet:
    """Append data sets to each other, as verl and datasets do."""
    if len(parts) == 1:
        return parts[0]
    return DataSet(
        source=", ".join(part.source for part in parts),
        format=parts[0].format,
        num_rows=sum(map(len, parts)),
        prompts=_chained([part.prompts for part in parts]),
        labels=_chained([part.labels for part in parts]),
        token_ids=_chained([part.token_ids for part in parts]),
        label_ids=_chained([part.label_ids for part in parts]),
        chats=_chained([part.chats for part in parts]),
        system=_chained([part.system for part in parts]),
        skipped=tuple(chain.from_iterable(part.skipped for part in parts)),
        num_skipped=sum(part.num_skipped for part in parts),
        notes=tuple(dict.fromkeys(chain.from_iterable(part.notes for part in parts))),
    )


def _find(found: Sequence[DataSet], name: str) -> DataSet | None:
    """Find a file by name; MindSpeed-RL's data_path is the start of several names."""
    wanted = PurePosixPath(name.rstrip("/")).name
    names = {data: PurePosixPath(data.source).name for data in found}
    exact = [data for data in found if names[data] == wanted]
    prefixed = [data for data in found if names[data].startswith(f"{wanted}_packed_")]
    either = exact or prefixed
    return either[0] if len(either) == 1 else None


def _chained(columns: Sequence[Sequence[Item] | None]) -> list[Item] | None:
    present = [column for column in columns if column is not None]
    return [*chain.from_iterable(present)] if len(present) == len(columns) else None
