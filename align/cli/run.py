"""``align run``: what a run folder holds, its manifest, its checksums and its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from align.cli.options import json_option, lang_option
from align.cli.run_place import RunPlace
from align.core.errors import ExitCode, RunError


@click.group()
def command() -> None:
    """Say what a run folder holds, write its manifest, check and thin it out."""


@command.command()
@click.argument("paths", type=RunPlace(), metavar="RUN...", nargs=-1, required=True)
@lang_option
@json_option
def show(paths: tuple[Path, ...], lang: str, as_json: bool) -> None:
    """List what was found in RUN (a folder, or files) and what is missing for which rung."""
    from align.cli.inventory_view import as_document, as_text
    from align.inventory import take_inventory
    from dumps.store.discover import discover
    from dumps.store.run_data import RunData
    from reports.render.json import render

    inventory = take_inventory(RunData(discover(paths)))
    if as_json:
        click.echo(render(as_document(inventory)), nl=False)
    else:
        click.echo(as_text(inventory, lang))


@command.command()
@click.argument("folder", type=RunPlace(is_read=False), metavar="RUN")
@click.option("--framework", help="verl, mindspeed_rl, …; found in the files when not given.")
@click.option("--framework-version", help="Such as 0.9.1, or a commit.")
@click.option("--device", type=click.Choice(["cuda", "npu", "cpu"]))
@click.option("--name", help="What reports call this run.")
@click.option("--note", "notes", multiple=True, help="Anything a reader should know.")
@click.option("--force", is_flag=True, help="Replace a manifest that is there.")
@click.option("--dry-run", is_flag=True, help="Print it, write nothing.")
def init(folder: Path, force: bool, dry_run: bool, **stated: Any) -> None:
    """Write RUN's manifest, align-run.json: facts its files do not state themselves."""
    from dumps.store.discover import discover
    from dumps.store.manifest import FILE_NAME, filled_manifest, manifest_json, write_manifest
    from dumps.store.run_data import RunData

    if not folder.is_dir():
        raise RunError(where=str(folder), problem="is not a folder", fix="give the run's folder")
    if (folder / FILE_NAME).exists() and not force and not dry_run:
        raise RunError(
            where=str(folder / FILE_NAME), problem="exists", fix="pass --force to replace it"
        )
    run = discover([folder], skips_broken_manifest=force)
    manifest = filled_manifest(RunData(run), **stated)
    if dry_run:
        click.echo(manifest_json(manifest), nl=False)
    else:
        click.echo(f"wrote {write_manifest(folder, manifest)}", err=True)


@command.command()
@click.argument("folder", type=RunPlace(is_read=False), metavar="RUN")
@click.argument(
    "files", type=click.Path(path_type=Path), metavar="FILE...", nargs=-1, required=True
)
@click.option("--step", type=click.IntRange(min=0), help="Training step the files belong to.")
def add(folder: Path, files: tuple[Path, ...], step: int | None) -> None:
    """Copy FILEs into RUN and enter them into its index, with their checksums."""
    from dumps.store.verify import add as add_files

    for name in add_files(folder, files, step):
        click.echo(f"added {name}", err=True)


@command.command()
@click.argument("folder", type=RunPlace(), metavar="RUN")
@json_option
def verify(folder: Path, as_json: bool) -> None:
    """Check RUN's files against their checksums; exit 1 where a file or a step is not whole."""
    from align.cli.verify_view import as_document, as_text
    from dumps.store.verify import verify as check
    from reports.render.json import render

    verified = check(folder)
    if as_json:
        click.echo(render(as_document(folder, verified)), nl=False)
    else:
        click.echo(as_text(folder, verified))
    click.get_current_context().exit(ExitCode.ALIGNED if verified.is_whole else ExitCode.FINDINGS)


@command.command()
@click.argument("folder", type=RunPlace(is_read=False), metavar="RUN")
@click.option("--steps", required=True, metavar="1-3,10", help="Steps whose files are removed.")
def prune(folder: Path, steps: str) -> None:
    """Remove the files of some steps from RUN, and their entries."""
    from dumps.capture.plan import parse_steps
    from dumps.store.verify import prune as remove

    removed = remove(folder, parse_steps(steps))
    click.echo(f"removed {len(removed)} files of {folder}", err=True)
