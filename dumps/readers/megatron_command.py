"""The command that starts Megatron or MindSpeed-LLM: ``torchrun … pretrain_gpt.py --lr 1e-6``.

It stands in a shell script, with blocks such as ``GPT_ARGS="…"``, or in a log that traces it. An
argument has the name that Megatron prints it under: ``--disable-bias-linear`` is
``add_bias_linear: false``. Flags no table knows are kept under their own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from align.core.config_value import ConfigLeaf, ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from align.frameworks.megatron_arguments import by_flag
from dumps.readers.leaf import Leaf, config_values
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.shell_words import ShellWord, assigned, command_words, expanded
from dumps.readers.text import identify, iter_lines

FORMAT = "megatron_command"

_SCRIPT = r"(?:pretrain|posttrain|finetune|train)_(?:gpt|mamba|llama|t5|bert|vlm)\w*\.py"
_LAUNCHER = r"^\s*\+*\s*(?!echo|#)[^'\"#]*\b(?:torchrun|msrun|python3?|\$\w+)\b.*"
_COMMAND = re.compile(_LAUNCHER + _SCRIPT)
_CONTINUED = re.compile(_LAUNCHER + r"\\\s*$")
_COMMAND_BYTES = re.compile(rb"\b" + _SCRIPT.encode())
_FLAG = re.compile(r"--?[A-Za-z][\w-]*")
_OF_TORCHRUN = {"nproc_per_node", "nnodes"}
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_MAX_LINES = 5_000


def _sniff(glimpse: Glimpse) -> bool:
    if identify(glimpse.head) is not None or not _COMMAND_BYTES.search(glimpse.head):
        return False
    lines = glimpse.head.decode("utf-8", "replace").splitlines()
    return _start(list(enumerate(lines, 1))) is not None


def read_megatron_command(path: Path, progress: Progress) -> RawConfig:
    """Read the arguments of the last training command of a script or a log.

    Raises:
        ConfigError: No training command with arguments.
    """
    lines = [line for _, line in zip(range(_MAX_LINES), iter_lines(path, progress), strict=False)]
    start = _start(lines)
    words: list[ShellWord] = []
    if start is not None:
        variables = assigned(lines[:start])
        words = expanded(list(command_words(lines[start:])), variables)
    leaves, unknown, notes = _leaves(words)
    if not leaves:
        raise ConfigError(
            where=str(path),
            problem="holds no training command with arguments of the form --flag value",
            fix="give the log in which Megatron printed its arguments",
        )
    return RawConfig(
        source=str(path),
        format=FORMAT,
        framework="megatron",
        values=config_values(leaves, source=str(path), kind=ProvenanceKind.OVERRIDE),
        notes=tuple(notes),
        unknown=tuple(unknown),
    )


def _start(lines: Sequence[tuple[int, str]]) -> int | None:
    """Return the index of the line where the last training command begins."""
    found = None
    for index, (_, text) in enumerate(lines):
        if _COMMAND.match(text):
            found = index
        elif _CONTINUED.match(text):  # the script's name stands on a line that continues it
            joined = " ".join(word.text for word in command_words(lines[index:]))
            found = index if re.search(_SCRIPT, joined) else found
    return found


def _leaves(words: Sequence[ShellWord]) -> tuple[list[Leaf], list[str], list[Text]]:
    names = [i for i, word in enumerate(words) if re.search(_SCRIPT, word.text)]
    if not names:
        return [], [], []
    launcher = [leaf for leaf in _arguments(words[: names[0]]) if leaf.path[0] in _OF_TORCHRUN]
    leaves: list[Leaf] = []
    unknown: list[str] = []
    notes: list[Text] = []
    for leaf in (*launcher, *_arguments(words[names[0] + 1 :])):
        name = str(leaf.path[0])
        if not _is_open(leaf.value):
            leaves.append(leaf)
            continue
        unknown.append(name)
        notes.append(
            Text(
                f"line {leaf.line}: the value of {name} is not known from here",
                f"第 {leaf.line} 行：{name} 的取值无法由此得知",
            )
        )
    return leaves, unknown, notes


def _arguments(words: Sequence[ShellWord]) -> Iterator[Leaf]:
    """Yield each flag with its values; several values are one tuple."""
    position = 0
    while position < len(words):
        word = words[position]
        flag, equals, value = word.text.partition("=")
        position += 1
        if not _FLAG.fullmatch(flag):
            continue
        values = [value] if equals else []
        while (
            not equals
            and position < len(words)
            and not _FLAG.fullmatch(words[position].text.partition("=")[0])
        ):
            values.append(words[position].text)
            position += 1
        name, leaf = _named(flag, values)
        yield Leaf((name,), leaf, word.line, word.shown)


def _named(flag: str, values: Sequence[str]) -> tuple[str, ConfigLeaf]:
    argument = by_flag().get(flag) or by_flag().get(flag.replace("_", "-"))
    name = argument.name if argument else flag.lstrip("-").replace("-", "_")
    if argument is not None and argument.action != "store":
        return name, argument.action == "store_true"
    if not values:
        return name, None if argument else True
    parsed = tuple(_value(value) for value in values)
    return name, parsed[0] if len(parsed) == 1 else parsed


def _value(text: str) -> ConfigLeaf:
    if not _NUMBER.fullmatch(text):
        return {"None": None, "True": True, "False": False}.get(text, text)
    return int(text) if re.fullmatch(r"[-+]?\d{1,400}", text) else float(text)


def _is_open(value: ConfigLeaf) -> bool:
    if isinstance(value, tuple):
        return any(_is_open(item) for item in value)
    return isinstance(value, str) and ("$" in value or "`" in value)


READER = Reader(FORMAT, ArtifactKind.CONFIG, _sniff, read_megatron_command, priority=-9)
