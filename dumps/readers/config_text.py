"""The text of a configuration file, and cheap looks at what kind of text it is."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from align.core.errors import ConfigError
from dumps.readers.reader import HEAD_BYTES, Glimpse, Progress
from dumps.readers.text import identify

MAX_BYTES = 4 << 20  # a configuration file of more than this is something else

_YAML_LINE = re.compile(
    r"""\s*(?:\#|-\s|-$|---|\.\.\.|[{\[\]}]|["']?[\w.@/ -]{1,80}["']?\s*:(?:\s|$))"""
)
_TOP_KEY = re.compile(r"""^(?:["'])?([\w.@/-]+)(?:["'])?\s*:(?=\s|$)""", re.MULTILINE)


def read_config_text(path: Path, progress: Progress) -> str:
    """Return a small text file's content, without byte order mark, invalid UTF-8 replaced.

    Raises:
        ConfigError: The file is binary, or larger than 4 MiB.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    progress(len(data))
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


def yaml_head(glimpse: Glimpse) -> str:
    """Return the first 64 KiB of what may be a YAML file, "" where it cannot be one."""
    return _yaml_text(glimpse.head) if glimpse.size_bytes <= MAX_BYTES else ""


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
