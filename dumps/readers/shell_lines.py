"""Words of a shell command over its continuation lines, and variables that are plain text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_ASSIGNMENT = re.compile(
    r"""\s*(?:export )?([A-Za-z_]\w*)=("[^"$`]*"|'[^']*'|[^\s"'$`();&|]*)\s*(?:#.*)?"""
)
_NAME = re.compile(r"\b([A-Za-z_]\w*)=")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, with the line it stands on."""

    text: str
    line: int
    shown: str


class Variables:
    """What a script has set so far; a variable set twice, or by the shell, is not known."""

    def __init__(self) -> None:
        self._assigned: dict[str, set[str]] = {}

    def see(self, text: str) -> None:
        """Take in one line."""
        for name in _NAME.findall(text):
            match = _ASSIGNMENT.fullmatch(text)
            value = match[2].strip("\"'") if match and match[1] == name else "$"
            self._assigned.setdefault(name, set()).add(value)

    @property
    def plain(self) -> dict[str, str]:
        """Variables with one value that the script itself states."""
        known = self._assigned.items()
        return {k: next(iter(v)) for k, v in known if len(v) == 1 and "$" not in v}


def plain_variables(lines: Iterable[tuple[int, str]]) -> dict[str, str]:
    """Return the variables that these lines set to plain text."""
    variables = Variables()
    for _, text in lines:
        variables.see(text)
    return variables.plain


def words_of(lines: Sequence[tuple[int, str]]) -> Iterator[Word]:
    """Yield the words of one command over its continuation lines."""
    text = ""
    for number, line in lines:
        is_continued = line.rstrip().endswith("\\")
        text += line.rstrip()[:-1] if is_continued else line
        try:
            words = shlex.split(text, comments=True)
        except ValueError:  # an open quote: the next line closes it
            text += "\n"
            continue
        yield from (Word(word, number, line) for word in words)
        text = ""
        if not is_continued:
            return
