"""``align doctor``: one run alone."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import exit_code, fail_on_option, json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.sides import find_run, load, size_bytes
from align.core.errors import ExitCode

_PARTS = ("problems", "environment", "performance")


@click.command("doctor")
@click.argument("paths", type=click.Path(path_type=Path), metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--only",
    "parts",
    type=click.Choice(_PARTS),
    multiple=True,
    help="Examine this part alone; may be repeated.",
)
@lang_option
@fail_on_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[Path, ...],
    parts: tuple[str, ...],
    lang: str,
    fail_on: str,
    as_json: bool,
) -> None:
    """Examine one run: known problems, versions and variables, and where its time goes.

    RUN is a folder, or files: a log, a configuration, metrics, a model's config.json. Advice on
    speed is not a finding: it never changes the exit code.
    """
    from align.cli.doctor_document import as_document
    from align.cli.doctor_view import as_text
    from align.doctor.diagnosis import Part
    from align.doctor.examine import ALL_PARTS, examine, has_anything
    from reports.render.json import render

    run = find_run(paths[0], paths[1:])
    with progress_bar(size_bytes(run)) as bar:
        data = load(run, bar.advance)
        diagnosis = examine(data, [Part(part) for part in parts] or ALL_PARTS)
    if as_json:
        click.echo(render(as_document(diagnosis)), nl=False)
    else:
        click.echo(as_text(diagnosis, lang))
    for problem in diagnosis.problems:
        click.echo(f"align: {problem}", err=True)
    if not has_anything(data):
        ctx.exit(ExitCode.NOT_COMPARABLE)
    ctx.exit(exit_code(diagnosis.findings, fail_on))
