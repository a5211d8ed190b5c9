"""The text of a configuration file, and cheap looks at what kind of text it is."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from align.core.errors import ConfigError
from dumps.readers.reader import HEAD_BYTES, Glimpse, Progress
from dumps.readers.text import identify

MAX_BYTES = 4 << 20  # a configuration file of more than this is something else
MAX_BYTES_WITH_LONG_LINES = 64 << 20  # unless single lines make it so large
_LONGEST_LINE_BYTES = 1 << 20
_LONG_VALUE = re.compile(rb"""([\t ]*(?:- )?["']?[\w.@/-]{1,80}["']?[\t ]*:)""")
TOO_LONG = "${too_long:"
"""Begins what stands for a value that was left out for its length; nothing resolves it."""

_YAML_LINE = re.compile(
    r"""\s*(?:\#|-\s|-$|---|\.\.\.|[{\[\]}]|["']?[\w.@/ -]{1,80}["']?\s*:(?:\s|$))"""
)
_TOP_KEY = re.compile(r"""^(?:["'])?([\w.@/-]+)(?:["'])?\s*:(?=\s|$)""", re.MULTILINE)


def read_config_text(path: Path, progress: Progress) -> str:
    """Return a small text file's content, without byte order mark, invalid UTF-8 replaced.

    Values of more than 1 MiB are left out: `TOO_LONG` and their length stand for them.

    Raises:
        ConfigError: The file is binary, or larger than 4 MiB without them.
    """
    with path.open("rb") as file:
        data = file.read(min(path.stat().st_size + 1, MAX_BYTES_WITH_LONG_LINES))
    progress(len(data))
    if len(data) > MAX_BYTES:
        data = _without_long_values(data)
    problem = identify(data[:HEAD_BYTES])
    if problem is None and len(data) > MAX_BYTES:
        problem = f"larger than {MAX_BYTES >> 20} MiB"
    if problem is not None:
        raise ConfigError(
            where=str(path),
            problem=f"is no configuration text ({problem})",
            fix="give the YAML or JSON file the run was started with, saved as UTF-8",
        )
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def _without_long_values(data: bytes) -> bytes:
    return b"\n".join(map(_without_long_value, data.split(b"\n")))


def _without_long_value(line: bytes) -> bytes:
    if len(line) <= _LONGEST_LINE_BYTES:
        return line
    key = _LONG_VALUE.match(line)
    return (key[1] if key else b"#") + f' "{TOO_LONG}{len(line)}}}"'.encode()


def yaml_head(glimpse: Glimpse) -> str:
    """Return the first 64 KiB of what may be a YAML file, "" where it cannot be one."""
    text = _yaml_text(glimpse.head)
    if not text or glimpse.size_bytes <= MAX_BYTES:
        return text
    return _long_yaml_text(glimpse.path) if glimpse.size_bytes <= MAX_BYTES_WITH_LONG_LINES else ""


@lru_cache(maxsize=1)
def _long_yaml_text(path: Path) -> str:
    data = _without_long_values(path.read_bytes())
    return _yaml_text(data[:HEAD_BYTES]) if len(data) <= MAX_BYTES else ""


@lru_cache(maxsize=4)  # every YAML reader asks about the same file in turn
def _yaml_text(head: bytes) -> str:
    if identify(head) is not None:
        return ""
    text = head.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = [line for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.lstrip().startswith("#")), "")
    if not lines or not _YAML_LINE.match(first):
        return ""
    num_yaml = sum(_YAML_LINE.match(line) is not None for line in lines)
    return text if num_yaml >= 0.7 * len(lines) else ""


def top_keys(text: str) -> set[str]:
    """Return the keys that stand at the start of a line of a YAML text."""
    return set(_TOP_KEY.findall(text))
