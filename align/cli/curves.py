"""``align curves``: metrics over steps."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import fail_on_option, json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.rung_show import show_and_exit
from align.cli.sides import find_run, load, sides, size_bytes


@click.group()
def command() -> None:
    """Compare metrics over steps."""


@command.command()
@sides()
@click.option(
    "--x",
    "axis",
    type=click.Choice(["step", "samples", "tokens", "hours"]),
    default="step",
    show_default=True,
    help="Compare at equal values of this.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="STEPS",
    help="Leave out so many first steps.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Compare this metric only, * for any text; may be repeated.",
)
@click.option("--all", "show_all", is_flag=True, help="Show every table too.")
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
    axis: str,
    warm_up: int,
    metrics: tuple[str, ...],
    show_all: bool,
    lang: str,
    fail_on: str,
    as_json: bool,
) -> None:
    """Say which metrics part, how and from which step on, and whether the reward is accepted."""
    from align.cli.rung_view import as_text
    from align.ladder import compare_curves

    runs = find_run(reference, reference_files), find_run(candidate, candidate_files)
    with progress_bar(sum(map(size_bytes, runs))) as bar:
        ours, theirs = (load(run, bar.advance) for run in runs)
        result = compare_curves(ours, theirs, axis=axis, warm_up=warm_up, metrics=metrics)
    show_and_exit(
        ctx,
        result,
        (ours, theirs),
        lambda: as_text(result, lang, show_all=show_all),
        fail_on=fail_on,
        as_json=as_json,
    )
