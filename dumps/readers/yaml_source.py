"""The lines of a YAML text, without those that are no YAML.

A framework would refuse the whole text. Here the key that breaks its rules is left out, and named,
so that the rest can be compared; a text that breaks off is read up to there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from align.core.errors import ConfigError

_MAX_HOLES = 8  # places left out of an unreadable file before it is given up
_KEY = re.compile(r"""[\t ]*["']?(?P<key>[\w.@/-]+)["']?[\t ]*:(?P<value>.*)""")
_NUM_SHOWN = 3
_FIX_OF = (
    ("while parsing a flow", "close the bracket that is opened there"),
    ("while scanning a quoted", "close the quote that is opened there"),
)


@cache
def loader() -> type[Any]:
    """Make a loader with libyaml's parser, where installed, and OmegaConf's rules for scalars."""
    from omegaconf._utils import get_yaml_loader  # no public name for these rules

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rules = {"yaml_implicit_resolvers": get_yaml_loader().yaml_implicit_resolvers}
    return type("_OmegaConfRules", (base,), rules)


@dataclass(slots=True)
class YamlSource:
    """The lines of a text, those that are no YAML blanked one key after another."""

    where: str
    numbers: Sequence[int]
    lines: Sequence[str]
    num_unread: int = 0
    holes: set[int] = field(default_factory=set)  # 0-based
    unknown: list[str] = field(default_factory=list)
    problems: list[ConfigError] = field(default_factory=list)

    def compose(self) -> yaml.Node:
        """Parse what can be parsed.

        Raises:
            ConfigError: Nothing can.
        """
        kept = list(self.lines)
        for _ in range(_MAX_HOLES + 1):
            try:
                root = yaml.compose("\n".join(kept), Loader=loader())
            except (yaml.YAMLError, RecursionError) as error:
                kept = self._without(kept, error)
                continue
            if isinstance(root, yaml.CollectionNode) and root.value:
                return root
            break
        raise self.nothing()

    def nothing(self) -> ConfigError:
        """Say that no key can be read."""
        first = next(iter(self.problems), None)
        return ConfigError(
            where=first.where if first else f"{self.where}:1",
            problem=first.problem if first else "is no YAML configuration: it holds no keys",
            fix=first.fix if first else "give the YAML file the run was started with",
        )

    def twice(self, key: str, first: int, last: int) -> None:
        """Note a key that stands in two 1-based lines."""
        number, before = self.numbers[last - 1], self.numbers[first - 1]
        self.problems.append(
            ConfigError(
                where=f"{self.where}:{number}",
                key=key,
                problem=f"stands in lines {before} and {number}, which OmegaConf refuses",
                fix="remove one of them; the last one is compared",
            )
        )

    def _without(self, kept: list[str], error: Exception) -> list[str]:
        """Blank the key an error stands in, or everything from there on."""
        if _is_tab(error, kept):
            return self._without_tabs(kept)
        start = min(_line_of(error, kept), len(kept) - 1)
        while start > 0 and not kept[start].strip():
            start -= 1
        indent, end = _indent(kept[start]), start + 1
        while end < len(kept) and (not kept[end].strip() or _indent(kept[end]) > indent):
            end += 1
        key = _dotted_key(kept, start)
        problem, fix = _problem(error), _fix(error)
        if end == len(kept) or key is None:  # the text breaks off, or no key is known to be lost
            self.num_unread = len(self.lines) - start
            self._report(start, f"is no YAML from here on ({problem})", fix)
            return kept[:start]
        self.holes |= set(range(start, end))
        self.unknown.append(key)
        self._report(start, f"is no YAML ({problem}): {key} is left out", fix)
        return [*kept[:start], *[""] * (end - start), *kept[end:]]

    def _without_tabs(self, kept: list[str]) -> list[str]:
        """Blank every line that is indented with a tab, in one go."""
        tabs = {i for i, line in enumerate(kept) if "\t" in _margin(line)}
        keys = [key for i in sorted(tabs) if (key := _dotted_key(kept, i)) is not None]
        self.holes |= tabs
        self.unknown += keys
        shown = ", ".join(keys[:_NUM_SHOWN]) + (" …" if len(keys) > _NUM_SHOWN else "")
        said = f"is no YAML (it is indented with a tab): {shown or 'it'}"
        fix = "indent it with spaces instead of a tab"
        self._report(min(tabs), f"{said} {'are' if len(keys) > 1 else 'is'} left out", fix)
        return ["" if i in tabs else line for i, line in enumerate(kept)]

    def _report(self, line: int, problem: str, fix: str) -> None:
        where = f"{self.where}:{self.numbers[line]}"
        self.problems.append(ConfigError(where=where, problem=problem, fix=fix))


def _dotted_key(lines: Sequence[str], at: int) -> str | None:
    """Spell the key in a line by the indentation above it; None where it has none."""
    found = _KEY.match(lines[at])
    if found is None:
        return None
    parts, indent = [found["key"]], _indent(lines[at])
    for line in reversed(lines[:at]):
        if not line.strip() or line.lstrip().startswith("#") or _indent(line) >= indent:
            continue
        above = _KEY.match(line)
        if above is None:
            return None  # an element of a list
        if not above["value"].partition("#")[0].strip():
            parts.append(above["key"])
            indent = _indent(line)
    return ".".join(reversed(parts))


def _indent(line: str) -> int:
    return len(_margin(line.expandtabs()))


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_tab(error: Exception, lines: Sequence[str]) -> bool:
    """Tell whether a parser stopped at a line that is indented with a tab."""
    mark = getattr(error, "problem_mark", None)
    return mark is not None and mark.line < len(lines) and "\t" in _margin(lines[mark.line])


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return str(error.problem or error.context)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _fix(error: Exception) -> str:
    said = f"{getattr(error, 'context', '')} {getattr(error, 'problem', '')}"
    found = (fix for sign, fix in _FIX_OF if sign in said)
    return next(found, "correct that line, or copy the file again")


def _line_of(error: Exception, lines: Sequence[str]) -> int:
    """Return the 0-based line of an error; of an open quote or bracket, where it was opened."""
    if isinstance(error, yaml.reader.ReaderError):
        unprintable = yaml.reader.Reader.NON_PRINTABLE
        return next((i for i, line in enumerate(lines) if unprintable.search(line)), 0)
    if not isinstance(error, yaml.MarkedYAMLError):
        return 0
    marks = [error.problem_mark]
    opened = ("while scanning", "while parsing a flow")
    if (error.context or "").startswith(opened):
        marks.append(error.context_mark)
    return min((mark.line for mark in marks if mark is not None), default=0)
