"""Show rulings on a step as text, or as a JSON document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from align.cli.rung_view import table_lines
from align.core.figure import Cell, Column, Table
from align.core.text import Text
from align.referee.link import Link, LinkVerdict
from align.referee.referee import Ruling, who_is_right

SCHEMA_VERSION = 1

_COLUMNS = (
    Column("link", Text("link", "环节")),
    Column("verdict", Text("verdict", "结论")),
    Column("recorded", Text("recorded", "记录值"), numeric=True),
    Column("recomputed", Text("recomputed", "重算值"), numeric=True),
    Column("tolerance", Text("±", "±"), numeric=True),
    Column("declared", Text("declared", "声明")),
    Column("note", Text("note", "说明")),
)
_VERDICTS = {
    LinkVerdict.AS_DECLARED: Text("as declared", "符合声明"),
    LinkVerdict.DIFFERS: Text("DIFFERS", "不符"),
    LinkVerdict.UNKNOWN: Text("unknown", "未知"),
    LinkVerdict.NOT_RECORDED: Text("not recorded", "未记录"),
}


def as_text(rulings: Sequence[Ruling], lang: str) -> str:
    """Return a table a run, and who is right where there are two."""
    lines: list[str] = []
    for ruling in rulings:
        title = Text(
            f"{ruling.run}, step {ruling.step}, float64",
            f"{ruling.run}，第 {ruling.step} 步，float64",
        )
        rows = tuple(_row(link) for link in ruling.links)
        lines += [*table_lines(Table("referee", title, _COLUMNS, rows), lang), ""]
    if len(rulings) == 2:
        lines += [f"{name}: {who.in_language(lang)}" for name, who in who_is_right(*rulings)]
    return "\n".join(lines).rstrip()


def as_document(rulings: Sequence[Ruling]) -> dict[str, Any]:
    """Return the versioned JSON document of ``align referee``."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "runs": [
            {
                "run": ruling.run,
                "step": ruling.step,
                "differs": ruling.differs,
                "links": [_link(link) for link in ruling.links],
            }
            for ruling in rulings
        ],
    }
    if len(rulings) == 2:
        document["who_is_right"] = {n: who.en for n, who in who_is_right(*rulings)}
    return document


def _row(link: Link) -> tuple[Cell, ...]:
    numbers = (link.recorded, link.recomputed, link.tolerance)
    shown = tuple(None if n is None else f"{n:.9g}" for n in numbers[:2])
    tolerance = None if link.tolerance is None else f"{link.tolerance:.2g}"
    note: Cell = link.note or ""
    return (link.name, _VERDICTS[link.verdict], *shown, tolerance, link.declared, note)


def _link(link: Link) -> dict[str, Any]:
    return {
        "name": link.name,
        "declared": link.declared.en,
        "verdict": link.verdict.value,
        "recorded": _number(link.recorded),
        "recomputed": _number(link.recomputed),
        "tolerance": _number(link.tolerance),
        "note": None if link.note is None else {"en": link.note.en, "zh": link.note.zh},
    }


def _number(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it: NaN and infinities as words."""
    return value if value is None or math.isfinite(value) else repr(value)
