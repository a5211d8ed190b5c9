"""Find the number a response gives as its answer."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?", re.ASCII)
_LONGEST_TAIL = 300  # characters; the answer stands last


def last_number(text: str) -> str | None:
    """Return the last number of a text, without thousands separators."""
    found = _NUMBER.findall(text[-_LONGEST_TAIL:])
    return found[-1].replace(",", "") if found else None
