"""The rows of a run: read, numbered, and a subset of them chosen as verl chooses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from align.core.errors import DumpError
from align.stack.row import Messages as Messages
from align.stack.row import Row as Row
from align.stack.sources import arithmetic, gsm8k, mindspeed_rl, verl

if TYPE_CHECKING:
    from align.stack.config import StackConfig

_Reader = Callable[[str, "StackConfig"], list[Row]]
_READERS: Mapping[str, _Reader] = {
    "arithmetic": arithmetic.read,
    "gsm8k": gsm8k.read,
    "mindspeed_rl": mindspeed_rl.read_indexed,
    "mindspeed_rl_jsonl": mindspeed_rl.read_records,
    "verl": verl.read,
}


def load_rows(config: StackConfig) -> list[Row]:
    """Read every file of ``data.train_files``, number the rows, keep ``data.train_max_samples``.

    Raises:
        DumpError: A file that cannot be read, or a row without what its format promises.
    """
    rows: list[Row] = []
    for file in config.data.train_files.split(","):
        rows += _READERS[_format_of(file.strip(), config)](file.strip(), config)
    if not rows:
        raise DumpError(
            where=config.data.train_files, problem="holds no rows", fix="give another data set"
        )
    return [replace(rows[i], index=i) for i in chosen(len(rows), config)]


def chosen(num_rows: int, config: StackConfig) -> Sequence[int]:
    """Return the rows that ``data.train_max_samples`` keeps, before any length filter.

    Source: verl `RLHFDataset._read_files_and_tokenize`: numpy's default_rng(seed).choice when
    shuffling, the first rows otherwise. With seed null verl draws an unseeded subset; here it is
    that of seed 0, so that a run can be repeated.
    """
    data = config.data
    if not 0 < data.train_max_samples < num_rows:
        return range(num_rows)
    if not data.shuffle:
        return range(data.train_max_samples)
    generator = np.random.default_rng(data.seed or 0)
    return [int(i) for i in generator.choice(num_rows, size=data.train_max_samples, replace=False)]


def _format_of(file: str, config: StackConfig) -> str:
    if config.stack.data.format != "auto":
        return config.stack.data.format
    if file == arithmetic.NAME:
        return "arithmetic"
    if mindspeed_rl.is_indexed(file):
        return "mindspeed_rl"
    if config.stack.data.map_keys:
        return "mindspeed_rl_jsonl"
    return "gsm8k" if gsm8k.matches(Path(file)) else "verl"
