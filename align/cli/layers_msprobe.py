"""``align layers diff`` of two folders of msprobe dumps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from align.cli.options import exit_code
from align.core.errors import ExitCode

if TYPE_CHECKING:
    from align.core.report import RunSummary


def are_msprobe(*paths: Path) -> bool:
    """Tell whether every path holds msprobe dumps; the imports are those of the reader alone."""
    from dumps.readers.msprobe_folder import dump_places

    return all(path.exists() and bool(dump_places(path)) for path in paths)


def diff_dumps(
    ctx: click.Context,
    paths: tuple[Path, Path],
    *,
    show_all: bool,
    lang: str,
    fail_on: str,
    as_json: bool,
) -> None:
    """Compare two folders of dumps, print what differs, and leave with the exit code."""
    from align.cli.rung_view import as_text
    from align.core.document import to_document
    from align.core.report import Report
    from align.core.rung import RungStatus
    from align.ladder import judge
    from align.layers.msprobe_rung import compare_folders
    from reports.render.json import render

    diff = compare_folders(*paths)
    if as_json:
        sides = _side(paths[0]), _side(paths[1])
        click.echo(render(to_document(Report(*sides, judge(diff.rungs), diff.rungs))), nl=False)
    else:
        click.echo("\n\n".join(as_text(rung, lang, show_all=show_all) for rung in diff.rungs))
    for problem in diff.problems:
        click.echo(f"align: {problem}", err=True)
    if diff.rungs[0].status is RungStatus.MISSING:
        ctx.exit(ExitCode.NOT_COMPARABLE)
    ctx.exit(exit_code([f for rung in diff.rungs for f in rung.findings], fail_on))


def _side(path: Path) -> RunSummary:
    from align.core.report import RunSummary
    from dumps.readers.msprobe_folder import dump_places

    places = dump_places(path)
    steps = [place.step for place in places if place.step is not None]
    first, last = min(steps, default=None), max(steps, default=None)
    return RunSummary(str(path), None, None, None, first, last, len(places))
