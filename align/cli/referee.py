"""``align referee``: did a step compute what its configuration declares?"""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import json_option, lang_option
from align.core.errors import ExitCode

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
    "again from them, in float64.",
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
    lang: str,
    as_json: bool,
) -> None:
    """Recompute a recorded step of RUN in float64, link by link, from what it recorded.

    With CAND the same step of both, and which of them computes what it declares. Exit 1 when a
    link is not as declared.
    """
    from align.cli.referee_view import as_document, as_text
    from align.cli.sides import find_run, load
    from align.referee.referee import rule
    from align.weights.load_model import load_model
    from reports.render.json import render

    paths = [reference] if candidate is None else [reference, candidate]
    runs = [load(find_run(path, ()), lambda num_bytes: None) for path in paths]
    model = None if weights is None else load_model(weights, "float64", "sdpa")
    rulings = [rule(run, step, model) for run in runs]
    click.echo(render(as_document(rulings)) if as_json else as_text(rulings, lang), nl=not as_json)
    for run in runs:
        for problem in run.problems:
            click.echo(f"align: {problem}", err=True)
    ctx.exit(ExitCode.FINDINGS if any(r.differs for r in rulings) else ExitCode.ALIGNED)
