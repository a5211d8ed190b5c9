"""The configuration that a run prints into its own console log.

verl's task runner pretty-prints the resolved dict. In a log it stands behind Ray prefixes and
colours, other processes write between its lines, and so does the runner itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from align.core.config_value import ConfigValue, ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.leaf import Leaf, config_values, dotted, framework_of
from dumps.readers.nested_literal import NestedLiteral
from dumps.readers.printed_rows import Margin, Row, Rows
from dumps.readers.reader import Glimpse, Progress, Reader

FORMAT = "printed_config"

_START = re.compile(
    rb"""\{\s*(?:'actor_rollout_ref'|"actor_rollout_ref"):\s?\{"""
    rb"""|\{'data': \{'(?=[^\0]{1,20000}?'trainer': \{)"""
)
_INDENTED = re.compile(r" {2,}['\"]")
_LOOK_AHEAD = 60  # lines in which to see whether the text kept its indentation
_MAX_FOREIGN = 400  # lines of the same process in a row that are no config: it was cut off


@dataclass(frozen=True, slots=True)
class _Printed:
    """One printed dict."""

    first_line: int
    leaves: tuple[Leaf, ...]
    is_complete: bool
    num_between: int  # lines of other output between its lines
    num_lost_ends: int


def _sniff(glimpse: Glimpse) -> bool:
    return glimpse.search(_START) is not None


def read_printed_config(path: Path, progress: Progress) -> RawConfig:
    """Read the last complete configuration that a log prints.

    A log that several attempts were appended to holds one for each; a note says how many there
    are and which keys differ.

    Raises:
        ConfigError: No printed configuration, or no value of it can be read.
    """
    printed = [p for p in _printed_dicts(path, progress) if p.leaves]
    if not printed:
        raise ConfigError(
            where=str(path),
            problem="prints no configuration that can be read",
            fix="give the run's .hydra folder or YAML file",
        )
    chosen = next((p for p in reversed(printed) if p.is_complete), printed[-1])
    values = _values(chosen, path)
    return RawConfig(
        source=str(path),
        format=FORMAT,
        framework=framework_of(values),
        values=values,
        truncated_at=None if chosen.is_complete else dotted(chosen.leaves[-1].path),
        num_unread_lines=chosen.num_between,
        notes=(*_notes(chosen), *_notes_on_others(chosen, printed, path)),
        problems=() if chosen.is_complete else (_ends_early(chosen, path),),
    )


def _values(printed: _Printed, path: Path) -> dict[str, ConfigValue]:
    return config_values(printed.leaves, source=str(path), kind=ProvenanceKind.PRINTED)


def _notes(printed: _Printed) -> Iterator[Text]:
    if printed.num_between:
        yield Text(
            f"{printed.num_between} lines of other output stand between the printed lines",
            f"打印的配置中夹杂了 {printed.num_between} 行其他输出",
        )
    if printed.num_lost_ends:
        yield Text(
            f"{printed.num_lost_ends} closing brackets are missing: some lines were lost",
            f"缺少 {printed.num_lost_ends} 个右括号：有若干行丢失",
        )


def _ends_early(printed: _Printed, path: Path) -> ConfigError:
    last = printed.leaves[-1]
    return ConfigError(
        where=f"{path}:{last.line}",
        problem=f"the configuration printed from line {printed.first_line} on ends early, after "
        f"{dotted(last.path)}",
        fix="give a log with all of it, or the run's .hydra folder or YAML file",
    )


def _notes_on_others(chosen: _Printed, printed: list[_Printed], path: Path) -> Iterator[Text]:
    if len(printed) > 1:
        yield Text(
            f"{len(printed)} configurations are printed; line {chosen.first_line}'s is used",
            f"共打印了 {len(printed)} 份配置；采用第 {chosen.first_line} 行的一份",
        )
    used = {key: value.value for key, value in _values(chosen, path).items()}
    for other in printed:
        values = {key: value.value for key, value in _values(other, path).items()}
        common = used.keys() & values.keys()
        if keys := sorted(key for key in common if repr(used[key]) != repr(values[key])):
            shown = ", ".join(keys[:5]) + (", …" if len(keys) > 5 else "")
            yield Text(
                f"line {other.first_line}'s differs in {len(keys)} keys: {shown}",
                f"第 {other.first_line} 行的一份有 {len(keys)} 个键与之不同：{shown}",
            )


def _printed_dicts(path: Path, progress: Progress) -> Iterator[_Printed]:
    rows = Rows(path, _START, progress)
    while (start := rows.find_start()) is not None:
        begin = _begin_of_dict(start.text)
        first = Row(start.number, start.text[begin:], start.is_last)
        yield _read_dict(first, Margin.before(start.text, begin).own(rows.following()))


def _read_dict(first: Row, rows: Iterator[Row | None]) -> _Printed:
    """Read one dict; None among the rows is a row of another process."""
    ahead = list(islice(rows, _LOOK_AHEAD))
    literal = NestedLiteral(by_column=any(row and _INDENTED.match(row.text) for row in ahead))
    is_readable = literal.feed(first.number, first.text, is_last=first.is_last)
    num_between = num_skipped = num_own_skipped = 0
    for row in chain(ahead, rows):
        if literal.is_complete or not is_readable or num_own_skipped > _MAX_FOREIGN:
            break
        if row is not None and literal.feed(row.number, row.text, is_last=row.is_last):
            num_between += num_skipped
            num_skipped = num_own_skipped = 0
        else:
            num_skipped += 1
            num_own_skipped += row is not None
    return _Printed(
        first_line=first.number,
        leaves=tuple(literal.leaves),
        is_complete=literal.is_complete,
        num_between=num_between,
        num_lost_ends=literal.num_lost_ends,
    )


def _begin_of_dict(text: str) -> int:
    data = text.encode("utf-8", "replace")
    found = _START.search(data)
    if found is None:  # the brace stands alone on its line
        return max(text.rfind("{"), 0)
    return len(data[: found.start()].decode("utf-8"))


READER = Reader(FORMAT, ArtifactKind.CONFIG, _sniff, read_printed_config)
