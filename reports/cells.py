"""Show one value as text that cannot be taken for another value."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from align.core.figure import Cell, Table
from align.core.finding import Scalar
from align.core.text import Text

ABSENT = "—"
# As one reads them in a config or a log: a string that looks like one of these gets quotes.
_WORDS = frozenset(("", "true", "false", "none", "null", "nan", "inf", "-inf", "infinity", ABSENT))

# What the document writes for floats that JSON does not have; a string so spelled shows the same.
_NONFINITE = frozenset(("NaN", "Infinity", "-Infinity"))

# Characters a terminal or a browser acts on instead of showing, by what stands for them.
_UNSEEN = {
    **{
        code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in b"\t\n"
    },
    **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)},
    **{
        code: f"\\u{code:04x}"
        for code in (
            *(0x061C, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF),
            *range(0x202A, 0x202F),
            *range(0x2066, 0x206A),
        )
    },
}


def show(value: Scalar) -> str:
    """Return a value as its reader knows it: floats short, look-alike strings in quotes."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _show_text(value)
    return _show_float(value) if isinstance(value, float) else str(value)


def show_in(table: Table) -> Callable[[Cell], str | Text]:
    """Return how to show a table's cells: where all are strings, none needs quotes.

    Words in both languages stay what they are; the page's own language is chosen when it is drawn.
    """
    values = [cell for row in table.rows for cell in row if not isinstance(cell, Text)]
    words_alone = all(value is None or isinstance(value, str) for value in values)

    def shown(cell: Cell) -> str | Text:
        if isinstance(cell, Text) or (words_alone and isinstance(cell, str) and cell):
            return cell
        return show(cell)

    return shown


def show_short(value: float) -> str:
    """Return four significant digits, for figures."""
    return f"{value:.4g}"


def visible(text: str) -> str:
    """Return ``text`` with control, direction and lone surrogate characters made visible."""
    return text.translate(_UNSEEN)


def _show_float(value: float) -> str:
    """Return nine significant digits, which is every float32, without trailing zeros."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    text = f"{value:.9g}"
    return text if "e" in text or "." in text else f"{text}.0"


def _show_text(value: str) -> str:
    if value in _NONFINITE:
        return value
    looks_otherwise = value.lower() in _WORDS or value != value.strip() or _is_number(value)
    return json.dumps(value, ensure_ascii=False) if looks_otherwise else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
