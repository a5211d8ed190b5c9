"""``align curves``: metrics of two runs, step by step."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import exit_code, fail_on_option, json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.sides import find_run, load, sides, size_bytes
from align.core.errors import ExitCode
from align.core.rung import RungStatus


@click.group()
def command() -> None:
    """Compare metrics over steps."""


@command.command()
@sides()
@click.option(
    "--all", "show_all", is_flag=True, help="List every common metric, not findings only."
)
@lang_option
@fail_on_option
@json_option
@click.pass_context
def diff(
    ctx: click.Context,
    reference: Path,
    candidate: Path,
    reference_files: tuple[Path, ...],
    candidate_files: tuple[Path, ...],
    show_all: bool,
    lang: str,
    fail_on: str,
    as_json: bool,
) -> None:
    """Say which metrics part, from which step on, and whether the reward is accepted."""
    from align.cli.curves_view import as_text
    from align.core.document import to_document
    from align.core.report import Report
    from align.curves.rung import compare
    from align.ladder import judge, summarise
    from reports.render.json import render

    runs = find_run(reference, reference_files), find_run(candidate, candidate_files)
    with progress_bar(sum(map(size_bytes, runs))) as bar:
        ours, theirs = (load(run, bar.advance) for run in runs)
        result = compare(ours, theirs)
    if as_json:
        report = Report(summarise(ours), summarise(theirs), judge([result]), (result,))
        document = to_document(report)
        click.echo(render(document), nl=False)
    else:
        click.echo(as_text(result, lang, show_all=show_all))
    for problem in (*ours.problems, *theirs.problems):
        click.echo(f"align: {problem}", err=True)
    if result.status is RungStatus.MISSING:
        ctx.exit(ExitCode.NOT_COMPARABLE)
    ctx.exit(exit_code(result.findings, fail_on))
