"""``align referee``: did a step compute what its configuration declares?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from align.cli.options import json_option, lang_option
from align.core.errors import ExitCode

if TYPE_CHECKING:
    from align.cli.progress import Count

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("reference", type=_PATH, metavar="RUN")
@click.argument("candidate", type=_PATH, metavar="[CAND]", required=False)
@click.option("--step", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--weights",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="A Hugging Face folder with the weights the step began with: log_probs are computed "
    "again from them, on the CPU.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --weights: N rows of the batch, evenly spread; all by default.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="With --weights: what log_probs are computed in; float32 needs half the memory.",
)
@lang_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    reference: Path,
    candidate: Path | None,
    step: int,
    weights: Path | None,
    rows: int | None,
    dtype: str,
    lang: str,
    as_json: bool,
) -> None:
    """Recompute a recorded step of RUN in float64, link by link, from what it recorded.

    With CAND the same step of both, and which of them computes what it declares. Exit 1 when a
    link is not as declared.
    """
    from align.cli.progress import count_bar
    from align.cli.referee_view import as_document, as_text
    from align.cli.sides import find_run, load
    from align.referee.referee import rule
    from align.referee.weights_link import Recomputation
    from align.weights.load_model import load_model
    from reports.render.json import render

    if rows is not None and weights is None:
        raise click.UsageError("--rows needs --weights", ctx)
    paths = [reference] if candidate is None else [reference, candidate]
    runs = [load(find_run(path, ()), lambda num_bytes: None) for path in paths]
    with count_bar() as bar:
        given = None
        if weights is not None:
            model = load_model(weights, dtype, "sdpa")
            given = Recomputation(model, rows, _counter(bar, len(runs)))
        rulings = [rule(run, step, given) for run in runs]
    click.echo(render(as_document(rulings)) if as_json else as_text(rulings, lang), nl=not as_json)
    for run in runs:
        for problem in run.problems:
            click.echo(f"align: {problem}", err=True)
    ctx.exit(ExitCode.FINDINGS if any(r.differs for r in rulings) else ExitCode.ALIGNED)


def _counter(bar: Count, num_runs: int) -> Callable[[int], None]:
    """Tell a bar of each row that is done."""

    def on_row(num_rows: int) -> None:
        bar.total(num_runs * num_rows)
        bar.done("row")

    return on_row
