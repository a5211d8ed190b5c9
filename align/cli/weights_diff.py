"""``align weights diff``: do both runs start from the same weights."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import exit_code, fail_on_option, json_option, lang_option
from align.core.errors import ExitCode

_PATH = click.Path(path_type=Path)


@click.command("diff")
@click.argument("reference", type=_PATH, metavar="REF")
@click.argument("candidate", type=_PATH, metavar="CAND")
@click.option("--config", type=_PATH, help="The model's config.json, where neither side has one.")
@click.option("--unsafe-pickle", is_flag=True, help="Read pickles that can run programs.")
@click.option("--all", "show_all", is_flag=True, help="List every tensor that differs.")
@lang_option
@fail_on_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    reference: Path,
    candidate: Path,
    config: Path | None,
    unsafe_pickle: bool,
    show_all: bool,
    lang: str,
    fail_on: str,
    as_json: bool,
) -> None:
    """Compare two checkpoints of any layout, tensor by tensor under Hugging Face names.

    Each is a folder of safetensors, a Megatron checkpoint (mp_rank folders or torch_dist), or a
    single file.
    """
    from align.cli.progress import count_bar
    from align.cli.weights_sides import open_side
    from align.cli.weights_view import as_document, as_text
    from align.weights.diff import compare
    from align.weights.findings import findings_of
    from reports.render.json import render

    ours = open_side(reference, config, (candidate,), unsafe=unsafe_pickle)
    theirs = open_side(candidate, config, (reference,), unsafe=unsafe_pickle)
    with count_bar() as bar:
        bar.total(len(ours.checkpoint.sources))
        diff = compare(ours.checkpoint, theirs.checkpoint, ours.family, bar.done)
    findings = findings_of(diff, ours.checkpoint, theirs.checkpoint)
    sides = (ours, theirs)
    if as_json:
        click.echo(render(as_document(diff, sides, findings)), nl=False)
    else:
        click.echo(as_text(diff, sides, findings, lang, show_all=show_all))
    if diff.num_compared == 0:
        ctx.exit(ExitCode.NOT_COMPARABLE)
    ctx.exit(exit_code(findings, fail_on))
