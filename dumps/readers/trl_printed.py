"""``GRPOConfig(…)`` as TRL prints its own configuration: every key, resolved.

transformers prints one ``key=value,`` a line, text without quotes; a dataclass's own repr stands on
one line. Both are parsed, nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from align.core.config_value import ConfigLeaf, ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from dumps.readers.leaf import Leaf, config_values
from dumps.readers.nested_literal import NestedLiteral
from dumps.readers.printed_rows import Margin, Row, Rows
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.trl_call import call_leaves

FORMAT = "trl_printed"

# Looking behind comes after the name, so that a search skips to its first letter: 4 times as fast.
_START = re.compile(
    rb"(?:GR|P|D)PO(?<![\w.]GRPO)(?<![\w.]PPO)(?<![\w.]DPO)Config\("
    rb"(?:\r?\n[^\n]*?\w+=|\w+=)"
)
_CLASS = re.compile(r"(?<![\w.])((?:GRPO|PPO|DPO)Config)\((.*)")
_LINE = re.compile(r"([A-Za-z_]\w*)=(.*),")
_ENUM = re.compile(r"[A-Z]\w*\.[A-Z_0-9]+")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|nan)")
_WORDS: dict[str, ConfigLeaf] = {"None": None, "True": True, "False": False}
_MAX_FOREIGN = 400  # lines of the same process in a row that are no arguments: it was cut off


def _sniff(glimpse: Glimpse) -> bool:
    # In a script the call's arguments are Python: another reader takes those.
    match = glimpse.search(_START)
    return match is not None and not _is_script(glimpse.head)


def _is_script(head: bytes) -> bool:
    return re.search(rb"(?m)^(?:from trl|import trl)\b", head) is not None


def read_trl_printed(path: Path, progress: Progress) -> RawConfig:
    """Read the last configuration that a log prints.

    Raises:
        ConfigError: No printed configuration, or no value of it can be read.
    """
    rows = Rows(path, _START, progress)
    leaves: list[Leaf] = []
    is_complete = False
    while (start := rows.find_start()) is not None:
        match = _CLASS.search(start.text)
        if match is None:
            continue
        owner = Leaf(("config_class",), match[1], start.number, start.text)
        if match[2].strip():
            found, is_complete = call_leaves(start.text[match.start() :], start.number)
        else:
            own = Margin.before(start.text, match.start()).own(rows.following())
            found, is_complete = _lines(own)
        if found:
            leaves = [owner, *found]
    if not leaves:
        raise ConfigError(
            where=str(path),
            problem="prints no TRL configuration that can be read",
            fix="give the YAML file or the script the run was started with",
        )
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.PRINTED)
    cut = None if is_complete else str(leaves[-1].path[0])
    return RawConfig(str(path), FORMAT, "trl", values, truncated_at=cut)


def _lines(rows: Iterator[Row | None]) -> tuple[list[Leaf], bool]:
    leaves: list[Leaf] = []
    num_foreign = 0
    for row in rows:
        if row is None:
            continue
        if row.text.strip() == ")":
            return leaves, True
        match = _LINE.fullmatch(row.text.strip())
        if match is None:
            num_foreign += 1
            if num_foreign > _MAX_FOREIGN:
                break
            continue
        num_foreign = 0
        leaves += _leaf(match[1], match[2], row)
    return leaves, False


def _leaf(key: str, text: str, row: Row) -> list[Leaf]:
    if text[:1] in "{[(" and text:
        literal = NestedLiteral(by_column=False)
        if literal.feed(row.number, text) and literal.is_complete:
            return [
                Leaf((key, *leaf.path), leaf.value, row.number, row.text) for leaf in literal.leaves
            ]
    return [Leaf((key,), _scalar(text), row.number, row.text)]


def _scalar(text: str) -> ConfigLeaf:
    """Read a value as ``str()`` printed it: text has no quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return int(text) if re.fullmatch(r"[-+]?\d{1,400}", text) else float(text)
    return text.rpartition(".")[2].lower() if _ENUM.fullmatch(text) else text


READER = Reader(FORMAT, ArtifactKind.CONFIG, _sniff, read_trl_printed, priority=5)
