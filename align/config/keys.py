"""Which field a configuration key is taken for, or why it is left out."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cache, lru_cache

from align.core.text import Text
from align.frameworks.config_table import ConfigTables

_NUM_KEPT = 16_384  # keys whose field is remembered: both sides have most of theirs in common


@lru_cache(maxsize=_NUM_KEPT)
def field_of(tables: ConfigTables, key: str) -> str | None:
    """Return the field a key is taken for: exact keys, then ignored ones, then families."""
    exact = tables.keys.get(key)
    if exact is not None:
        return str(exact)
    if why_ignored(tables, key) is not None:
        return None
    for before, after, name in _families(tables):
        fits = len(key) >= len(before) + len(after)
        if fits and key.startswith(before) and key.endswith(after):
            return name.replace("*", key[len(before) : len(key) - len(after)])
    return None


@cache
def _families(tables: ConfigTables) -> tuple[tuple[str, str, str], ...]:
    """Return what stands before and after the star of each family, and the family's field."""
    parted = ((*pattern.partition("*"), str(name)) for pattern, name in tables.keys.items())
    return tuple((before, after, name) for before, star, after, name in parted if star)


def is_section(tables: ConfigTables, key: str) -> bool:
    """Tell whether known keys lie below this one."""
    return any(known.startswith(f"{key}.") for known in tables.keys)


@lru_cache(maxsize=_NUM_KEPT)
def why_ignored(tables: ConfigTables, key: str) -> Text | None:
    """Return why a key has no effect on numbers, None where it can have one."""
    exact = tables.ignored.get(key)
    if exact is not None:
        return exact
    return next((why for p, why in _ignored_patterns(tables) if matches(p, key)), None)


@cache
def _ignored_patterns(tables: ConfigTables) -> tuple[tuple[str, Text], ...]:
    return tuple((pattern, why) for pattern, why in tables.ignored.items() if "*" in pattern)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def matches(pattern: str, key: str) -> bool:
    """Tell whether a key has the form of an fnmatch pattern."""
    return _compiled(pattern).match(key) is not None
