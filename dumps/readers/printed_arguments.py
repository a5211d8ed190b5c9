"""The block of arguments that Megatron, and what is built on it, prints when it starts.

``------------------------ arguments ------------------------``, then ``  lr ....... 1e-06`` a
line, then ``-------------------- end of arguments ---------------------``. Every default is in it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from align.core.config_value import ConfigLeaf, ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from dumps.readers.leaf import Leaf, config_values
from dumps.readers.printed_rows import Margin, Rows
from dumps.readers.reader import Glimpse, Progress, Reader

FORMAT = "printed_arguments"

_START = re.compile(rb"-{8,} (?!end of)[\w .-]*[Aa]rguments -{8,}")
_HINT = re.compile(rb"rguments -{8,}")  # starts with a literal: fast through a large file
_START_TEXT = re.compile(_START.pattern.decode())
_END = re.compile(r"-{8,} end of [\w .-]*[Aa]rguments -{8,}")
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*) \.{2,} ?(.*)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|nan)")
_WORDS: dict[str, ConfigLeaf] = {"None": None, "True": True, "False": False}


def _sniff(glimpse: Glimpse) -> bool:
    return glimpse.search(_HINT) is not None


def read_printed_arguments(path: Path, progress: Progress) -> RawConfig:
    """Read the last printed block of arguments.

    Raises:
        ConfigError: No block, or no argument in it.
    """
    rows = Rows(path, _START, progress)
    leaves: list[Leaf] = []
    is_complete, num_between = False, 0
    while (start := rows.find_start()) is not None:
        found = _START_TEXT.search(start.text)
        margin = Margin.before(start.text, found.start() if found else 0)
        leaves, is_complete, num_between = [], False, 0
        for row in margin.own(rows.following()):
            if row is not None and _END.search(row.text):
                is_complete = True
                break
            argument = None if row is None or row.is_last else _ARGUMENT.fullmatch(row.text)
            if row is None or argument is None:
                num_between += 1
                continue
            leaves.append(Leaf((argument[1],), _value(argument[2]), row.number, row.text))
    if not leaves:
        raise ConfigError(
            where=str(path),
            problem="prints no block of arguments that can be read",
            fix="give the run's YAML file",
        )
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.PRINTED)
    stage = values.get("stage")
    is_rl = stage is not None and str(stage.value).startswith(("ray_", "dpo"))
    return RawConfig(
        source=str(path),
        format=FORMAT,
        framework="mindspeed_rl" if is_rl else "megatron",
        values=values,
        truncated_at=None if is_complete else str(leaves[-1].path[0]),
        num_unread_lines=num_between if is_complete else 0,
    )


def _value(text: str) -> ConfigLeaf:
    """Read a value as ``str()`` printed it: text has no quotes."""
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return int(text) if re.fullmatch(r"[-+]?\d{1,400}", text) else float(text)
    if text.startswith("["):
        return _list(text)
    return text


def _list(text: str) -> ConfigLeaf:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    if isinstance(value, list) and all(isinstance(v, str | int | float | None) for v in value):
        return tuple(value)
    return text


READER = Reader(FORMAT, ArtifactKind.CONFIG, _sniff, read_printed_arguments, priority=-5)
