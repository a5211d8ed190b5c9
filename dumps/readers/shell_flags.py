"""Commands with ``--flag value`` in a shell script, or in the line that ``set -x`` printed of one.

A variable that the script sets once to plain text is filled in. A value that only the shell knows
is named and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from align.core.config_value import ConfigLeaf
from align.core.text import Text
from dumps.readers.leaf import Leaf
from dumps.readers.shell_lines import Variables, Word, words_of
from dumps.readers.yaml_leaves import parse_value

_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^${}]*))?\}|\$([A-Za-z_]\w*)")
_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ENDS = ("&&", "||", "|", ";", "&", ">", ">>", "2>&1", "2>", "&>")


@dataclass(frozen=True, slots=True)
class Flags:
    """What the flags of a command set, and what only the shell can tell."""

    leaves: tuple[Leaf, ...]
    unknown: tuple[str, ...]
    notes: tuple[Text, ...]


def commands(lines: Sequence[tuple[int, str]], program: re.Pattern[str]) -> Iterator[list[Word]]:
    """Yield the words of every command whose first line matches ``program``, variables filled in.

    Args:
        lines: 1-based number and text.
        program: matched at the start of a line.
    """
    variables = Variables()
    for index, (_, text) in enumerate(lines):
        variables.see(text)
        if program.match(text):
            plain = variables.plain
            yield [_filled(word, plain) for word in words_of(lines[index:])]


def read_flags(
    words: Iterable[Word], short: Mapping[str, str], is_switch: frozenset[str] = frozenset()
) -> Flags:
    """Read ``--key value``, ``--key=value``, ``--switch`` and ``--no-switch``.

    Args:
        words: of one command; what stands before its first flag is not looked at.
        short: full names of short flags.
        is_switch: flags that never take the next word as their value.
    """
    leaves: list[Leaf] = []
    unknown: list[str] = []
    notes: list[Text] = []
    for flag, values, word in _grouped(words, is_switch):
        name = short.get(flag, flag).replace("-", "_")
        if any("$" in value or "`" in value for value in values):
            unknown.append(name)
            notes.append(
                Text(
                    f"line {word.line}: the value of {name} is not known from here",
                    f"第 {word.line} 行：{name} 的取值无法由此得知",
                )
            )
            continue
        path = tuple(name.split("."))
        if not values and name.startswith("no_"):
            leaves.append(Leaf((name.removeprefix("no_"),), False, word.line, word.shown))
            continue
        leaves += [
            Leaf((*path, *rest), value, word.line, word.shown) for rest, value in _value(values)
        ]
    return Flags(tuple(leaves), tuple(unknown), tuple(notes))


def _value(values: Sequence[str]) -> list[tuple[tuple[str | int, ...], ConfigLeaf]]:
    if not values:
        return [((), True)]
    if len(values) == 1:
        return list(parse_value(values[0]))
    return [((), tuple(parse_value(value)[0][1] for value in values))]


def _grouped(
    words: Iterable[Word], is_switch: frozenset[str]
) -> Iterator[tuple[str, list[str], Word]]:
    """Yield each flag with its values and the word it stands in."""
    flag: Word | None = None
    name = ""
    values: list[str] = []
    is_open = True
    for word in words:
        if word.text in _ENDS:
            break
        match = None if _is_number(word.text) else _FLAG.fullmatch(word.text)
        if match is None:
            if word.text.endswith(".py"):  # the script that a launcher starts: its flags follow
                is_open = False
            elif flag is not None and is_open and name not in is_switch:
                values.append(word.text)
            continue
        if flag is not None:
            yield name, values, flag
        flag, name, is_open = word, match[1], True
        values = [] if match[2] is None else [match[2]]
    if flag is not None:
        yield name, values, flag


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-\d+(?:\.\d*)?(?:[eE][-+]?\d+)?", text) is not None


def _filled(word: Word, variables: Mapping[str, str]) -> Word:
    text = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] or m[0]), word.text)
    return Word(text, word.line, word.shown)
