"""Which known key an unknown one was meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from align.frameworks.config_table import config_tables

_SIMILAR = 75.0  # of 100; below that a suggestion is a guess: difflib's own default is 60
_MISSPELLED = 85.0  # one letter lost, added, doubled or swapped in a word of seven
_EQUAL = 100.0
_SHORTEST_WORD = 4  # a letter more or less in "c" and "b", or in "tp", makes another key


@dataclass(frozen=True, slots=True)
class Near:
    """A known key that resembles an unknown one; ``score`` is 100 for the same last part."""

    key: str
    field: str
    score: float


@cache
def known_keys(framework: str | None) -> Mapping[str, str]:
    """Return every key a framework's tables spell out, as a user writes it, with its field."""
    tables = config_tables(framework)
    if tables is None:
        return MappingProxyType({})
    of_formulas = {key: formula.field for formula in tables.formulas for key in formula.keys}
    keys = {**of_formulas, **tables.keys}
    plain = {key: name for key, name in keys.items() if "*" not in key and " " not in key}
    return MappingProxyType({tables.user_key(key): name for key, name in sorted(plain.items())})


def nearest(framework: str | None, key: str) -> Near | None:
    """Return the known key most like ``key``: the same last part first, then the whole of it."""
    known = known_keys(framework)
    found = most_alike(key, known)
    return Near(found[0][0], known[found[0][0]], found[0][1]) if found else None


def most_alike(key: str, known: Iterable[str], limit: int = 1) -> list[tuple[str, float]]:
    """Return up to ``limit`` names, the most alike first, each with the score of its last part."""
    from rapidfuzz import fuzz

    last = _last_part(key)
    scored = []
    for name in known:
        part = fuzz.ratio(last, _last_part(name))
        if part >= _SIMILAR or fuzz.ratio(key, name) >= _SIMILAR:
            scored.append((part, fuzz.ratio(key, name), name))
    scored.sort(key=lambda row: (-row[0], -row[1], row[2]))
    return [(name, part) for part, _, name in scored[:limit]]


def misspelled(framework: str | None, key: str) -> Near | None:
    """Return the key that ``key`` was meant to be, None where that is not certain enough.

    Certain enough is a word of the last part with a letter or two wrong, or abbreviated; or the
    right last part in the wrong place, where no other field has it or a section was left out.
    """
    near = nearest(framework, key)
    known = known_keys(framework)
    if near is None or near.key == key:
        return None
    if near.score < _EQUAL:
        return near if _same_words(_last_part(key), _last_part(near.key)) else None
    if near.key.startswith(f"{key.rpartition('.')[0]}."):
        return near  # actor.lr for actor.optim.lr
    sections = {name.partition(".")[0] for name in known}
    fields = {name for other, name in known.items() if _last_part(other) == _last_part(key)}
    return near if key.partition(".")[0] in sections and len(fields) == 1 else None


def _same_words(one: str, other: str) -> bool:
    """Tell whether two names differ in nothing but the spelling of long words."""
    from rapidfuzz import fuzz

    pairs = list(zip(one.split("_"), other.split("_"), strict=False))
    if len(one.split("_")) != len(other.split("_")):
        return one.replace("_", "") == other.replace("_", "")
    return all(
        a == b
        or (min(len(a), len(b)) >= _SHORTEST_WORD and fuzz.ratio(a, b) >= _MISSPELLED)
        or (min(len(a), len(b)) >= 3 and (a.startswith(b) or b.startswith(a)))
        for a, b in pairs
    )


def _last_part(key: str) -> str:
    return key.rpartition(".")[2].lower()
