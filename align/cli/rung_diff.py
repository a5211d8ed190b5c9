"""``diff``: two runs compared on one rung alone."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from align.cli.options import exit_code, fail_on_option, json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.sides import find_run, load, sides, size_bytes
from align.core.errors import ExitCode
from align.core.rung import RungStatus


def diff_command(
    rung_module: str, help: str, *, function: str = "compare", with_tables: bool = False
) -> click.Command:
    """Return the ``diff`` command of the rung that ``function`` of a module compares.

    Args:
        with_tables: print the rung's tables without ``--all`` too.
    """

    @click.command("diff", help=help)
    @sides()
    @click.option("--all", "show_all", is_flag=True, help="List what is equal too.")
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
        from align.cli.rung_view import as_text
        from align.core.document import to_document
        from align.core.report import Report
        from align.ladder import judge, summarise
        from reports.render.json import render

        runs = find_run(reference, reference_files), find_run(candidate, candidate_files)
        with progress_bar(sum(map(size_bytes, runs))) as bar:
            ours, theirs = (load(run, bar.advance) for run in runs)
            result = getattr(import_module(rung_module), function)(ours, theirs)
        if as_json:
            report = Report(summarise(ours), summarise(theirs), judge([result]), (result,))
            click.echo(render(to_document(report)), nl=False)
        else:
            click.echo(as_text(result, lang, show_all=show_all or with_tables))
        for problem in (*ours.problems, *theirs.problems):
            click.echo(f"align: {problem}", err=True)
        if result.status is RungStatus.MISSING:
            ctx.exit(ExitCode.NOT_COMPARABLE)
        ctx.exit(exit_code(result.findings, fail_on))

    return diff
