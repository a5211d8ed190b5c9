"""Hydra overrides: ``key=value``, ``+key=value``, ``++key=value`` and ``~key``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from align.core.config_value import ConfigLeaf
from align.core.text import Text
from dumps.readers.leaf import Path
from dumps.readers.yaml_leaves import parse_value

_OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w./@:$-]*)(?:=(.*))?", re.DOTALL)
_PLAIN_IN_HYDRA = re.compile(r"(?i:yes|no|on|off)|0\d+|[-+]?\d+(?::\d+)+(?:\.\d*)?")
_TIGHT_COLON = re.compile(r"""([{,]\s*["']?[\w.-]+["']?):(?=\S)""")


@dataclass(frozen=True, slots=True)
class Override:
    """One override: the leaves it sets (several for a dict), or the key it deletes."""

    key: str
    leaves: tuple[tuple[Path, ConfigLeaf], ...]
    deletes: bool = False


def parse_override(text: str) -> Override | None:
    """Read one override as Hydra does; None for a word that is none.

    Source: the grammar in Hydra 1.3's documentation. Its numbers and quotes are OmegaConf's;
    ``yes``, ``010`` and ``1:30`` are plain text in it, though not in YAML.
    """
    match = _OVERRIDE.fullmatch(text.strip())
    if match is None:
        return None
    mark, key, value = match.groups()
    if mark == "~":
        return Override(key, (), deletes=True)
    if value is None:
        return None
    return Override(key, tuple(((key, *path), leaf) for path, leaf in _leaves(value.strip())))


def deleted(line: int, key: str) -> Text:
    """Note that an override takes a key away."""
    return Text(f"line {line} deletes {key}", f"第 {line} 行删除了 {key}")


def _leaves(value: str) -> list[tuple[Path, ConfigLeaf]]:
    if not value or _PLAIN_IN_HYDRA.fullmatch(value):
        return [((), value)]
    return parse_value(_TIGHT_COLON.sub(r"\1: ", value) if value.startswith("{") else value)
