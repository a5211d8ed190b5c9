"""Find the one edit that turns one side's prompts into the other's: a different template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MAX_PAIRS = 8
MIN_PAIRS = 3  # two unrelated prompts can differ in one place by chance; three alike do not
_MAX_CHARACTERS = 8192
_SHINGLE = 8
_TOKEN = re.compile(r"\s+|\S+")

Edit = tuple[tuple[str, str], ...]
"""(reference text, candidate text) of each differing span, in order; "" where nothing stands."""


@dataclass(frozen=True, slots=True)
class ConstantEdit:
    """The spans in which all prompts differ alike, and how many pairs showed it."""

    spans: Edit
    num_pairs: int


def find_constant_edit(references: Sequence[str], candidates: Sequence[str]) -> ConstantEdit | None:
    """Pair each candidate prompt with the most similar reference prompt and compare the edits.

    Returns:
        The edit that all pairs share, None where they have none in common: then the prompts are
        other prompts, not the same ones rendered otherwise.
    """
    pairs = _similar_pairs(
        [text for text in references if len(text) <= _MAX_CHARACTERS],
        [text for text in candidates if len(text) <= _MAX_CHARACTERS],
    )
    edits = {edit_between(reference, candidate) for reference, candidate in pairs}
    if len(pairs) < MIN_PAIRS or len(edits) != 1:
        return None
    (edit,) = edits
    return ConstantEdit(edit, len(pairs)) if edit else None


def edit_between(reference: str, candidate: str) -> Edit:
    """Return the differing spans of two texts, in words and white space."""
    a, b = _TOKEN.findall(reference), _TOKEN.findall(candidate)
    return tuple(
        ("".join(a[i1:i2]), "".join(b[j1:j2]))
        for operation, i1, i2, j1, j2 in SequenceMatcher(None, a, b).get_opcodes()
        if operation != "equal"
    )


def _similar_pairs(references: list[str], candidates: list[str]) -> list[tuple[str, str]]:
    """Pair the first candidates with the reference prompt that shares most shingles, each once."""
    shingles = [(text, _shingles(text)) for text in dict.fromkeys(references)]
    pairs = []
    for candidate in list(dict.fromkeys(candidates))[:MAX_PAIRS]:
        own = _shingles(candidate)
        best = max(shingles, key=lambda entry: len(entry[1] & own), default=None)
        if best is not None and best[1] & own:
            shingles.remove(best)
            pairs.append((best[0], candidate))
    return pairs


def _shingles(text: str) -> frozenset[str]:
    return frozenset(text[i : i + _SHINGLE] for i in range(max(1, len(text) - _SHINGLE + 1)))
