"""``align run``: what a run folder holds, and its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from align.cli.options import json_option, lang_option
from align.core.errors import RunError


@click.group()
def command() -> None:
    """Say what a run folder holds, and write its manifest."""


@command.command()
@click.argument("paths", type=click.Path(path_type=Path), metavar="RUN...", nargs=-1, required=True)
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
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="RUN")
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
