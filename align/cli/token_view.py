"""The comparison of token ids as text for a terminal: findings, then two rows side by side."""

from __future__ import annotations

from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text as Styled

from align.cli.rung_view import as_text as findings_as_text
from align.core.figure import Cell, Table
from align.core.rung import RungResult
from align.core.text import Text
from align.rollout.token_row import Role
from align.rollout.token_table import NUM_FIELDS, ROLES

WIDTH = 120
_STYLES = {
    Role.PROMPT: "cyan",
    Role.RESPONSE: "green",
    Role.EOS: "bold magenta",
    Role.PAD: "dim",
}
_DIFFERS = "bold red"
_ROLE = 3  # its place among a side's fields


def as_text(result: RungResult, lang: str) -> str:
    """Return summary and findings, and the chosen pair as a table with a colour a role."""
    parts = [findings_as_text(result, lang)]
    parts += (_drawn(table, lang) for table in result.tables)
    return "\n\n".join(parts)


def _drawn(table: Table, lang: str) -> str:
    """Draw the columns that hold anything; lines that differ are red."""
    kept = [
        place
        for place in range(len(table.columns))
        if any(row[place] not in (None, "…") for row in table.rows)
    ]
    grid = Grid(
        box=box.SIMPLE_HEAD,
        title=table.title.in_language(lang),
        title_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for place in kept:
        column = table.columns[place]
        grid.add_column(
            column.title.in_language(lang),
            justify="right" if column.numeric else "left",
            overflow="ellipsis",
            max_width=16,
        )
    for row in table.rows:
        grid.add_row(*(_styled(row, place, lang) for place in kept))
    out = StringIO()
    console = Console(
        file=out,
        width=WIDTH,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _styled(row: tuple[Cell, ...], place: int, lang: str) -> Styled:
    value = row[place]
    if value is None:
        shown = ""
    else:
        shown = value.in_language(lang) if isinstance(value, Text) else str(value)
    if row[-1] is not None:
        return Styled(shown, _DIFFERS)
    side = min(place // NUM_FIELDS, 1)
    role = next((r for r, name in ROLES.items() if name == row[side * NUM_FIELDS + _ROLE]), None)
    return Styled(shown, _STYLES[role] if role is not None else "")
