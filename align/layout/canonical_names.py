"""Every tensor a model has under its Hugging Face name."""

from __future__ import annotations

from align.layout.dialect import HUGGINGFACE
from align.layout.entries import Piece, entries, whole
from align.layout.family import Family
from align.layout.sizes import Sizes


def canonical(family: Family, sizes: Sizes) -> dict[str, Piece]:
    """Return the pieces by name, in the order of the model; a tied head has none of its own."""
    found = entries(family, sizes, HUGGINGFACE, whole(sizes))
    return {piece.name: piece for entry in found for piece in entry.pieces}
