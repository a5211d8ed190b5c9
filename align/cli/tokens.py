"""``align tokens``: the ids, masks, positions and labels that each side trains on."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import fail_on_option, json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.rung_show import show_and_exit
from align.cli.sides import find_run, load, sides, size_bytes


@click.group()
def command() -> None:
    """Compare the tokens each side trains on, row by row."""


@command.command("diff")
@sides()
@click.option("--step", type=click.IntRange(min=0), help="Compare this step alone.")
@click.option("--row", type=click.IntRange(min=0), help="Show this row of REF whole, from 0.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Where a side has none.")
@click.option("--color/--no-color", default=None, help="As the terminal can, by default.")
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
    step: int | None,
    row: int | None,
    tokenizer: Path | None,
    color: bool | None,
    lang: str,
    fail_on: str,
    as_json: bool,
) -> None:
    """Compare input_ids, masks, positions and labels of two runs or dumps."""
    from align.cli.token_view import as_text
    from align.rollout.token_compare import Chosen, compare_tokens
    from align.rollout.token_tokenizer import load_tokenizer

    given = None if tokenizer is None else load_tokenizer(tokenizer)
    runs = find_run(reference, reference_files), find_run(candidate, candidate_files)
    with progress_bar(sum(map(size_bytes, runs))) as bar:
        ours, theirs = (load(run, bar.advance) for run in runs)
        result = compare_tokens(ours, theirs, Chosen(step, row), given)
    show_and_exit(
        ctx,
        result,
        (ours, theirs),
        lambda: as_text(result, lang),
        fail_on=fail_on,
        as_json=as_json,
        color=color,
    )
