"""Text shown to people, in the two languages our users read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Text:
    """One message in English and Chinese.

    Both are written by hand beside the code that makes the finding; the JSON document carries
    both, so a report can be drawn again in the other language from the JSON alone.
    """

    en: str
    zh: str

    def in_language(self, lang: str) -> str:
        """Return the message in ``lang`` ("en" or "zh")."""
        return self.zh if lang == "zh" else self.en

    def __str__(self) -> str:
        return self.en


def joined(texts: Iterable[Text]) -> Text:
    """Return clauses as one text."""
    clauses = tuple(texts)
    return Text("; ".join(t.en for t in clauses), "；".join(t.zh for t in clauses))
