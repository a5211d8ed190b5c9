"""The comparison of two configurations as text for a terminal of 100 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import StringIO

from rich import box
from rich.console import Console, ConsoleRenderable, Group
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text as Styled

from align.cli.rung_view import as_text
from align.config.resolve import NO_KEY
from align.config.schema import field_named
from align.core.figure import Cell, Table
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.rung import RungResult, RungStatus
from align.core.text import Text

WIDTH = 100
_LONGEST_VALUE = 120
_WIDEST_VALUE = 30

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold"}
_SEVERITIES = {
    Severity.ERROR: Text("ERROR", "错误"),
    Severity.WARNING: Text("WARNING", "警告"),
    Severity.INFO: Text("INFO", "提示"),
}
_SIDES = {
    Side.REFERENCE: Text("reference", "参考"),
    Side.CANDIDATE: Text("candidate", "被测"),
    Side.BOTH: Text("both", "两侧"),
}
_FIX = Text("Fix:", "修改：")
_MORE = Text(
    "--all shows consequence and fix of these too, and every value compared.",
    "--all 还会显示上述各项的后果与修改方法，以及所有比较过的值。",
)


def as_blocks(result: RungResult, lang: str, *, show_all: bool = False) -> str:
    """Return one block a finding, the worst first: both values, keys, places, what to do."""
    if result.status is RungStatus.MISSING:
        return rendered(Styled(as_text(result, lang, show_all=show_all)))
    parts: list[ConsoleRenderable] = [
        Styled(f"{result.status.value}: {result.summary.in_language(lang)}")
    ]
    for finding in result.findings:
        brief = finding.severity is Severity.INFO and finding.mechanism is not None
        parts += [Styled(""), *_block(finding, lang, brief=brief and not show_all)]
    if not show_all and any(f.severity is Severity.INFO for f in result.findings):
        parts += [Styled(""), Styled(_MORE.in_language(lang))]
    for table in result.tables if show_all else ():
        parts += [Styled(""), table_of(table, lang)]
    return rendered(Group(*parts))


def rendered(content: ConsoleRenderable) -> str:
    """Return rich content as text with colours; click takes them out where there is no terminal."""
    out = StringIO()
    console = Console(
        file=out,
        width=WIDTH,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,  # a list is no markup
        emoji=False,
    )
    console.print(content)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def table_of(table: Table, lang: str) -> ConsoleRenderable:
    """Return a table whose cells are folded to fit."""
    grid = Grid(box=box.SIMPLE_HEAD, title=table.title.in_language(lang), title_justify="left")
    for column in table.columns:
        title = column.title.in_language(lang)
        grid.add_column(title, overflow="fold", justify="right" if column.numeric else "left")
    for row in table.rows:
        grid.add_row(*(_plain(cell, lang) for cell in row))
    return grid


def _block(finding: Finding, lang: str, *, brief: bool) -> Iterator[ConsoleRenderable]:
    yield _head(finding, lang)
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column()
    grid.add_column(overflow="fold", max_width=_WIDEST_VALUE)
    grid.add_column(overflow="fold")
    for evidence in finding.evidence:
        value = finding.candidate if evidence.side is Side.CANDIDATE else finding.reference
        shown = _shortened(_plain(value, lang)) if _is_field(finding) else ""
        grid.add_row(_SIDES[evidence.side].in_language(lang), shown, _place(evidence, lang))
    if finding.evidence:
        yield Padding(grid, (0, 0, 0, 2))
    if not brief:
        fix = Styled.assemble((_FIX.in_language(lang), "bold"), " ", finding.fix.in_language(lang))
        yield Padding(Styled(finding.why.in_language(lang)), (0, 0, 0, 2))
        yield Padding(fix, (0, 0, 0, 2))


def _head(finding: Finding, lang: str) -> Styled:
    severity = _SEVERITIES[finding.severity].in_language(lang)
    name = finding.id.removeprefix("config.")
    title = finding.title.in_language(lang)
    if _is_field(finding):
        title = field_named(name).meaning.in_language(lang)
        if finding.mechanism is not None:
            acts_on = finding.mechanism.acts_on.value
            title = Text(f"{title}; acts on {acts_on}", f"{title}；作用于 {acts_on}").in_language(
                lang
            )
    return Styled.assemble((severity, _STYLES[finding.severity]), "  ", (name, "bold"), "  ", title)


def _is_field(finding: Finding) -> bool:
    """Tell whether a finding is one field's difference, with a value a side."""
    try:
        field_named(finding.id.removeprefix("config."))
    except KeyError:
        return False
    return finding.mechanism is not None


def _place(evidence: Evidence, lang: str) -> str:
    where = f"{evidence.source}:{evidence.line}" if evidence.line else evidence.source
    if lang == "zh" and where.startswith("default of "):
        where = f"{where.removeprefix('default of ')} 的默认值"
    if evidence.key == NO_KEY:
        return f"{(evidence.text or '').strip()}\n{where}"
    return f"{evidence.key}{_stated(evidence)}\n{where}" if evidence.key else where


def _stated(evidence: Evidence) -> str:
    """Return the line as its file has it, where it says more than the key does."""
    text = (evidence.text or "").strip()
    last = re.escape((evidence.key or "").rpartition(".")[2])
    return f"  [{text}]" if text and not re.search(rf"\b{last}['\"]?\s*[:=]", text) else ""


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _plain(value: Cell, lang: str) -> str:
    if isinstance(value, Text):
        return value.in_language(lang)
    return "-" if value is None else str(value)
