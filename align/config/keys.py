"""Which field a configuration key is taken for, or why it is left out."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cache

from align.core.text import Text
from align.frameworks.config_table import ConfigTables


def field_of(tables: ConfigTables, key: str) -> str | None:
    """Return the field a key is taken for: exact keys, then ignored ones, then families."""
    exact = tables.keys.get(key)
    if exact is not None:
        return str(exact)
    if why_ignored(tables, key) is not None:
        return None
    for pattern, name in tables.keys.items():
        before, star, after = pattern.partition("*")
        fits = len(key) >= len(before) + len(after)
        if star and fits and key.startswith(before) and key.endswith(after):
            return str(name).replace("*", key[len(before) : len(key) - len(after)])
    return None


def is_section(tables: ConfigTables, key: str) -> bool:
    """Tell whether known keys lie below this one."""
    return any(known.startswith(f"{key}.") for known in tables.keys)


def why_ignored(tables: ConfigTables, key: str) -> Text | None:
    """Return why a key has no effect on numbers, None where it can have one."""
    exact = tables.ignored.get(key)
    if exact is not None:
        return exact
    patterns = tables.ignored.items()
    return next((why for p, why in patterns if "*" in p and matches(p, key)), None)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def matches(pattern: str, key: str) -> bool:
    """Tell whether a key has the form of an fnmatch pattern."""
    return _compiled(pattern).match(key) is not None
