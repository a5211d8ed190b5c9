"""``align weights convert``: a checkpoint in another layout."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import lang_option
from align.core.errors import ExitCode

_PATH = click.Path(path_type=Path)
_POSITIVE = click.IntRange(min=1)
_SPECS = ("te", "local", "te-grouped", "local-grouped")


@click.command("convert")
@click.argument("source", type=_PATH, metavar="SRC")
@click.argument("target", type=_PATH, metavar="DST")
@click.option("--to", "layout", type=click.Choice(["hf", "megatron"]), required=True)
@click.option("--format", "form", type=click.Choice(["legacy", "torch_dist"]), default="legacy")
@click.option("--spec", type=click.Choice(_SPECS), default="te", help="Module names of Megatron.")
@click.option("--tp", type=_POSITIVE, default=1, help="Tensor-parallel ranks.")
@click.option("--pp", type=_POSITIVE, default=1, help="Pipeline stages.")
@click.option("--ep", type=_POSITIVE, default=1, help="Expert-parallel ranks.")
@click.option("--vpp", type=_POSITIVE, default=1, help="Virtual chunks of each stage.")
@click.option(
    "--vocab-multiple", type=_POSITIVE, default=128, help="Pads the vocabulary, times TP."
)
@click.option("--config", type=_PATH, help="The model's config.json, where SRC has none.")
@click.option("--drop", multiple=True, metavar="PATTERN", help="Tensors to leave out.")
@click.option("--shard-gb", type=float, default=5.0, show_default=True, help="Of hf files.")
@click.option("--unsafe-pickle", is_flag=True, help="Read pickles that can run programs.")
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@lang_option
@click.pass_context
def command(
    ctx: click.Context,
    source: Path,
    target: Path,
    layout: str,
    form: str,
    spec: str,
    tp: int,
    pp: int,
    ep: int,
    vpp: int,
    vocab_multiple: int,
    config: Path | None,
    drop: tuple[str, ...],
    shard_gb: float,
    unsafe_pickle: bool,
    dry_run: bool,
    lang: str,
) -> None:
    """Write SRC's weights to the new folder DST in another layout, bit for bit.

    SRC is a folder of safetensors, a Megatron checkpoint (mp_rank folders or torch_dist) or a file.
    A tensor that no rule covers, or that is missing, stops the conversion with exit code 1.
    """
    from align.cli.progress import count_bar
    from align.cli.weights_sides import open_side
    from align.cli.weights_write import Plan, write_plan
    from align.weights.convert import Parallel
    from align.weights.findings import coverage_findings

    side = open_side(source, config, (), unsafe=unsafe_pickle, drop=drop)
    findings = coverage_findings(side.checkpoint, None)
    for finding in findings:
        click.echo(f"{finding.title.in_language(lang)}: {finding.candidate}", err=True)
        click.echo(f"  -> {finding.fix.in_language(lang)}", err=True)
    if findings:
        ctx.exit(ExitCode.FINDINGS)
    parallel = Parallel(tp, pp, ep, vpp, vocab_multiple)
    plan = Plan.of(side, layout, form, spec, parallel)
    if not dry_run:
        with count_bar() as bar:
            bar.total(plan.num_tensors)
            write_plan(plan, side, target, int(shard_gb * 1e9), bar.done)
    click.echo(plan.summary(str(target), dry_run).in_language(lang))
