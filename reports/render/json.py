"""Write a report document as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def render(document: Mapping[str, Any]) -> str:
    """Return the document as JSON text, one value a line, keys in the document's own order.

    Half a surrogate pair, which dumps do hold, has no UTF-8 and is written as JSON's escape.
    """
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8") + "\n"
