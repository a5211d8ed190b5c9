"""How every ``diff`` of one rung ends: its result shown, what could not be read, the exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from align.cli.options import exit_code
from align.core.errors import ExitCode
from align.core.rung import RungResult, RungStatus

if TYPE_CHECKING:
    from dumps.store.run_data import RunData


def show_and_exit(
    ctx: click.Context,
    result: RungResult,
    runs: tuple[RunData, RunData],
    text: Callable[[], str],
    *,
    fail_on: str,
    as_json: bool,
    color: bool | None = None,
) -> None:
    """Print a rung's result as text or document and leave.

    Args:
        runs: reference and candidate.
        text: makes the text; not called where the document is asked for.
        color: of the text; None where the terminal decides.
    """
    from align.core.document import to_document
    from align.core.report import Report
    from align.ladder import judge, summarise
    from reports.render.json import render

    if as_json:
        reference, candidate = map(summarise, runs)
        report = Report(reference, candidate, judge([result]), (result,))
        click.echo(render(to_document(report)), nl=False)
    else:
        click.echo(text(), color=color)
    for problem in (problem for run in runs for problem in run.problems):
        click.echo(f"align: {problem}", err=True)
    if result.status is RungStatus.MISSING:
        ctx.exit(ExitCode.NOT_COMPARABLE)
    ctx.exit(exit_code(result.findings, fail_on))
