"""``align layers export``: a capture as another tool's dumps."""

from __future__ import annotations

from pathlib import Path

import click

from align.core.errors import ExitCode, RunError


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the dumps; it must be new or empty.",
)
@click.option("--format", "form", type=click.Choice(["msprobe"]), default="msprobe")
@click.pass_context
def command(ctx: click.Context, run: Path, out: Path, form: str) -> None:
    """Write the statistics of RUN's sketches as msprobe dumps, for its viewer and its compare."""
    from align.cli.progress import progress_bar
    from align.cli.sides import find_run, load, size_bytes
    from dumps.store.msprobe_writer import write_msprobe

    if out.exists() and any(out.iterdir()):
        raise RunError(where=str(out), problem="is not empty", fix="name a new folder")
    found = find_run(run, ())
    with progress_bar(size_bytes(found)) as bar:
        data = load(found, bar.advance)
        written = write_msprobe(data.sketches, out)
    for problem in data.problems:
        click.echo(f"align: {problem}", err=True)
    if not written:
        click.echo(f"align: {run} holds no sketches of modules; see `align capture`", err=True)
        ctx.exit(ExitCode.NOT_COMPARABLE)
    for place in written:
        click.echo(str(place))
