"""``align accept``: does the candidate meet a declared policy?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from align.cli.options import json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.sides import find_run, load, sides, size_bytes
from align.core.errors import AlignError, ExitCode

_PATH = click.Path(path_type=Path)


@click.command()
@sides()
@click.option(
    "--repeat",
    "repeats",
    type=_PATH,
    multiple=True,
    metavar="RUN",
    help="A further run of the reference, other seed: its noise floor. May be repeated.",
)
@click.option(
    "--policy",
    default="field",
    show_default=True,
    metavar="NAME|FILE",
    help="field, reward, inference, seed_band, mean_loss, megatron, or a YAML file.",
)
@click.option(
    "-o", "--out", type=_PATH, metavar="DIR", help="Write certificate.html and certificate.json."
)
@lang_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    reference: Path,
    candidate: Path,
    reference_files: tuple[Path, ...],
    candidate_files: tuple[Path, ...],
    repeats: tuple[Path, ...],
    policy: str,
    out: Path | None,
    lang: str,
    as_json: bool,
) -> None:
    """Judge CAND against REF under a policy: pass, fail or undecided, each with its interval.

    Exits 0 where every clause passes, 1 where one fails or is undecided, 3 where none is recorded.
    """
    from align.acceptance.certificate import as_document, certify
    from align.acceptance.judge import judge
    from align.acceptance.policy import read_policy
    from align.acceptance.read_inputs import read_input
    from align.cli.accept_view import as_text
    from align.curves.criterion import Outcome
    from reports.render.json import render

    asked = read_policy(policy)
    runs = [find_run(reference, reference_files), find_run(candidate, candidate_files)]
    runs += [find_run(repeat, ()) for repeat in repeats]
    with progress_bar(sum(map(size_bytes, runs))) as bar:
        data = [load(run, bar.advance) for run in runs]
        judgement = judge(data[0], data[1], data[2:], asked)
        roles = ("reference", "candidate", *("repeat" for _ in repeats))
        inputs = [read_input(role, run) for role, run in zip(roles, data, strict=True)]
    document = as_document(certify(judgement, inputs))
    if out is not None:
        click.echo(f"certificate: {_write(document, out, lang)}", err=True)
    click.echo(render(document) if as_json else as_text(judgement, lang), nl=not as_json)
    for problem in (problem for run in data for problem in run.problems):
        click.echo(f"align: {problem}", err=True)
    codes = {Outcome.PASS: ExitCode.ALIGNED, Outcome.MISSING: ExitCode.NOT_COMPARABLE}
    ctx.exit(codes.get(judgement.outcome, ExitCode.FINDINGS))


def _write(document: dict[str, Any], folder: Path, lang: str) -> Path:
    """Write both files and return the page."""
    from dumps.store.atomic import write_atomic
    from reports.render import certificate, json

    page = folder / "certificate.html"
    texts = {
        page: certificate.render(document, lang),
        folder / "certificate.json": json.render(document),
    }
    try:
        for path, text in texts.items():
            write_atomic(path, text)
    except OSError as error:
        raise AlignError(
            where=str(error.filename or folder),
            problem=f"the certificate cannot be written ({error.strerror or error})",
            fix="choose another folder with -o",
        ) from error
    return page
