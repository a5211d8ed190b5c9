"""Both runs' tokenizers, loaded once and only when asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from align.core.text import Text
from tokenizer_check.content import Content
from tokenizer_check.load import load

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class LoadedPair:
    """The tokenizers of reference and candidate."""

    def __init__(self, contents: tuple[Content, Content]) -> None:
        self._contents = contents

    @cached_property
    def _loaded(self) -> tuple[Tokenizer | Text, Tokenizer | Text]:
        ours, theirs = self._contents
        return load(ours), load(theirs)

    def each(self) -> tuple[Tokenizer | None, Tokenizer | None]:
        """Return what can be loaded; None for what cannot."""
        ours, theirs = self._loaded
        return (
            None if isinstance(ours, Text) else ours,
            None if isinstance(theirs, Text) else theirs,
        )

    def both(self) -> tuple[Tokenizer, Tokenizer] | None:
        """Return both tokenizers; None unless both can be loaded."""
        ours, theirs = self.each()
        return None if ours is None or theirs is None else (ours, theirs)

    def why_not(self) -> tuple[Text | None, Text | None]:
        """Return why each of them cannot be loaded."""
        ours, theirs = self._loaded
        return (
            ours if isinstance(ours, Text) else None,
            theirs if isinstance(theirs, Text) else None,
        )
