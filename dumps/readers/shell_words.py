"""Words of a shell script: the blocks its variables hold, and the command that uses them.

Only what is certain is filled in: a variable the script itself sets once, to text. One that only
the shell can know stays as it is written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

_ASSIGNMENT = re.compile(
    r"""^[ \t]*(?:export[ ]|declare[ ]-a[ ]|local[ ])?([A-Za-z_]\w*)(\+?)=
    (?:"((?:[^"\\]|\\.)*)"|'([^']*)'|\(([^()]*(?:\([^()]*\)[^()]*)*)\)|([^\s"'();&|]*(?:\(\([^\n]*)?))""",
    re.MULTILINE | re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[@\])?\}|\$([A-Za-z_]\w*)")
_OPERATORS = re.compile(r"(?:[|&;]+|\d*>>?&?.*|<.*|2>&1)")
_DEEPEST = 8  # variables inside variables


@dataclass(frozen=True, slots=True)
class ShellWord:
    """One word after quotes are removed, at the 1-based line it stands on."""

    text: str
    line: int
    shown: str


Variables = Mapping[str, tuple[ShellWord, ...]]


def assigned(lines: Sequence[tuple[int, str]]) -> Variables:
    """Return the variables that are set once, or appended to, with the words of their value."""
    text = "\n".join(line for _, line in lines)
    numbers = [number for number, _ in lines]
    found: dict[str, tuple[ShellWord, ...]] = {}
    unknown: set[str] = set()
    for match in _ASSIGNMENT.finditer(text):
        name, appends = match[1], bool(match[2])
        group = next((n for n in (3, 4, 5, 6) if match[n] is not None), 6)
        first = text.count("\n", 0, match.start(group))
        words = tuple(_words_of(match[group] or "", numbers, first))
        if appends:
            found[name] = (*found.get(name, ()), *words)
        elif name in found and _texts(found[name]) != _texts(words):
            unknown.add(name)
        else:
            found[name] = words
    return {name: words for name, words in found.items() if name not in unknown}


def command_words(lines: Sequence[tuple[int, str]]) -> Iterator[ShellWord]:
    """Yield the words of the first command, over its continuation lines, up to a pipe."""
    for number, line in lines:
        is_continued = line.rstrip().endswith("\\")
        for word in _split(line.rstrip().removesuffix("\\")):
            if _OPERATORS.fullmatch(word):
                return
            yield ShellWord(word, number, line)
        if not is_continued:
            return


def expanded(words: Sequence[ShellWord], variables: Variables, depth: int = 0) -> list[ShellWord]:
    """Replace variables by their words; what is not known keeps its ``$``."""
    made: list[ShellWord] = []
    for word in words:
        whole = _VARIABLE.fullmatch(word.text)
        name = str(whole[1] or whole[2]) if whole else ""
        if name in variables and depth < _DEEPEST:
            made += expanded(variables[name], variables, depth + 1)
        else:
            made.append(replace(word, text=_filled(word.text, variables, depth)))
    return made


def _filled(text: str, variables: Variables, depth: int) -> str:
    def value(match: re.Match[str]) -> str:
        words = variables.get(match[1] or match[2])
        if words is None or depth >= _DEEPEST:
            return match[0]
        return " ".join(word.text for word in expanded(words, variables, depth + 1))

    return _VARIABLE.sub(value, text)


def _words_of(value: str, numbers: Sequence[int], first: int) -> Iterator[ShellWord]:
    for offset, line in enumerate(value.split("\n")):
        for word in _split(line.rstrip().removesuffix("\\")):
            yield ShellWord(word, numbers[first + offset], line)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that another line closes
        return line.split()


def _texts(words: Sequence[ShellWord]) -> list[str]:
    return [word.text for word in words]
