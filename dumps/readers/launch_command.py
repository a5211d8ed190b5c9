"""The command that starts a run: a shell script, or the line that ``set -x`` printed of it.

Only what is certain is taken: a variable the script itself sets to plain text is filled in. A value
that only the shell or the composed configuration knows is left out and named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.hydra_override import deleted, parse_override
from dumps.readers.leaf import Leaf, config_values, framework_of
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.shell_lines import Word, plain_variables, words_of
from dumps.readers.text import identify, iter_lines

FORMAT = "launch_command"

_PROGRAM = (
    r"(?:python3?(?:\.\d+)?|torchrun)\b.*?(?:-m (?:verl|recipe)\.[\w.]+|main_(?:ppo|dapo)\.py"
    r"|train_(?:grpo|ppo|dapo|dpo)\.py)"
)
_TRACED = re.compile(r"^\++ (?!echo|eval|COMMAND)[^'\"#]*?" + _PROGRAM)
_IN_SCRIPT = re.compile(r"^\s*(?!echo|#)[^'\"#]*?" + _PROGRAM)
_SCRIPT = re.compile(rb"(?:\xef\xbb\xbf)?(?:#!.*sh\b|set -|export |[A-Za-z_]+=|nohup |python3? )")
_COMMAND_BYTES = re.compile(_PROGRAM.encode())
_TRACED_BYTES = re.compile(_TRACED.pattern.encode(), re.MULTILINE)
_ARRAY_START = re.compile(r"\s*(?:declare -a |local )?([A-Za-z_]\w*)(\+?)=\((.*)")
_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_MAX_LINES = 5_000  # a script is not longer, and a log traces its command at the start


def _sniff(glimpse: Glimpse) -> bool:
    if identify(glimpse.head) is not None:
        return False
    if _TRACED_BYTES.search(glimpse.head):
        return True
    return bool(_SCRIPT.match(glimpse.head) and _COMMAND_BYTES.search(glimpse.head))


def read_launch_command(path: Path, progress: Progress) -> RawConfig:
    """Read the overrides of the last training command in a script or a traced log.

    Raises:
        ConfigError: No training command with overrides of the form key=value.
    """
    lines = [line for _, line in zip(range(_MAX_LINES), iter_lines(path, progress), strict=False)]
    variables, words = _command(lines)
    leaves: list[Leaf] = []
    notes: list[Text] = []
    unknown: list[str] = []
    for word in words:
        text = _filled(word.text, variables)
        override = parse_override(text)
        if override is None:
            continue
        if override.deletes:
            notes.append(deleted(word.line, override.key))
        elif "$" in text or "`" in text:
            unknown.append(override.key)
            notes.append(
                Text(
                    f"line {word.line}: the value of {override.key} is not known from here",
                    f"第 {word.line} 行：{override.key} 的取值无法由此得知",
                )
            )
        else:
            leaves += [Leaf(p, value, word.line, word.shown) for p, value in override.leaves]
    if not leaves:
        raise ConfigError(
            where=str(path),
            problem="holds no training command with overrides of the form key=value",
            fix="give the .hydra folder the run wrote",
        )
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.OVERRIDE)
    return RawConfig(
        source=str(path),
        format=FORMAT,
        framework=framework_of(values) or _framework(words),
        values=values,
        notes=tuple(notes),
        unknown=tuple(unknown),
    )


def _framework(words: list[Word]) -> str | None:
    return "verl" if any(word.text.startswith(("verl.", "recipe.")) for word in words) else None


def _command(lines: list[tuple[int, str]]) -> tuple[Mapping[str, str], list[Word]]:
    """Find the last training command, its words, and the variables set before it."""
    is_traced = any(_TRACED.match(text) for _, text in lines)
    pattern = _TRACED if is_traced else _IN_SCRIPT
    starts = [i for i, (_, text) in enumerate(lines) if pattern.match(text)]
    if not starts:
        return {}, []
    variables = plain_variables(lines[: starts[-1]])
    arrays = _arrays(lines[: starts[-1]])
    words = words_of(lines[starts[-1] :])
    return variables, [part for word in words for part in _expanded(word, arrays)]


def _arrays(lines: list[tuple[int, str]]) -> dict[str, list[Word]]:
    """Return the bash arrays that a script sets: ``overrides=( key=value … )``."""
    arrays: dict[str, list[Word]] = {}
    current: list[Word] | None = None
    for number, line in lines:
        text = line
        match = _ARRAY_START.match(line) if current is None else None
        if match:
            current = arrays.setdefault(match[1], [])
            if not match[2]:
                current.clear()
            text = match[3]
        if current is None:
            continue
        try:
            words = shlex.split(text, comments=True)
        except ValueError:  # a quote over several lines: what it holds is not taken
            continue
        closes = bool(words) and words[-1].endswith(")")
        if closes:
            words[-1] = words[-1][:-1]
        current += [Word(word, number, line) for word in words if word]
        if closes:
            current = None
    return arrays


def _expanded(word: Word, arrays: Mapping[str, list[Word]]) -> list[Word]:
    match = _ARRAY.fullmatch(word.text)
    return arrays.get(match[1], [word]) if match else [word]


def _filled(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda m: variables.get(m[1] or m[2], m[0]), text)


READER = Reader(FORMAT, ArtifactKind.CONFIG, _sniff, read_launch_command, priority=-10)
