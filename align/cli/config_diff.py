"""``align config diff``: what differs between two configurations, worst first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from align.cli.options import fail_on_option, json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.rung_show import show_and_exit
from align.cli.sides import load, sides, size_bytes

if TYPE_CHECKING:
    from align.core.run import Run
    from dumps.store.run_data import RunData

_PATTERN = (
    "A field, an original key, a rung, a severity, or a pattern of these such as 'rollout.*'; "
    "may be repeated."
)


@click.command("diff")
@sides()
@click.option("--all", "show_all", is_flag=True, help="List what is equal too.")
@click.option("--only", multiple=True, metavar="PATTERN", help=f"Show nothing else. {_PATTERN}")
@click.option("--ignore", multiple=True, metavar="PATTERN", help=f"Leave it out. {_PATTERN}")
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
    only: tuple[str, ...],
    ignore: tuple[str, ...],
    lang: str,
    fail_on: str,
    as_json: bool,
) -> None:
    """Compare effective values, worst difference first: defaults and units are resolved.

    REF and CAND are run folders or single files: YAML, a log that prints its configuration, a
    launch script.
    """
    from align.cli.config_view import as_blocks
    from align.config.rung import compare
    from align.config.select import select

    runs = [
        _find(path, files)
        for path, files in ((reference, reference_files), (candidate, candidate_files))
    ]
    with progress_bar(sum(map(size_bytes, runs))) as bar:
        ours, theirs = (_readable(load(run, bar.advance)) for run in runs)
        result = select(compare(ours, theirs), only, ignore)
    show_and_exit(
        ctx,
        result,
        (ours, theirs),
        lambda: as_blocks(result, lang, show_all=show_all),
        fail_on=fail_on,
        as_json=as_json,
    )


def _find(path: Path, further: tuple[Path, ...]) -> Run:
    """Discover one side; a file given by name is a configuration, whatever it looks like."""
    from dataclasses import replace

    from align.core.run import Artifact, ArtifactKind
    from dumps.store.discover import discover

    run = discover([path, *further])
    given = {file.resolve() for file in (path, *further) if file.is_file()}
    read_as_yaml = tuple(
        Artifact(ArtifactKind.CONFIG, "yaml_config", file.path, file.path.stat().st_size)
        for file in run.unknown
        if file.path.resolve() in given
    )
    unknown = tuple(file for file in run.unknown if file.path.resolve() not in given)
    return replace(run, artifacts=(*run.artifacts, *read_as_yaml), unknown=unknown)


def _readable(data: RunData) -> RunData:
    """Return a side of which something could be read.

    Raises:
        AlignError: Nothing could.
    """
    if not data.configs and data.problems:
        raise data.problems[0]
    return data
