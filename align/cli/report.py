"""``align report``: the main job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from align.cli.layers import NOISE_RUNS
from align.cli.options import exit_code, fail_on_option, json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.rung_diff import run_options
from align.cli.sides import find_run, load, sides, size_bytes
from align.core.errors import DocumentError, ExitCode
from align.core.report import NextRun, Report
from align.core.verdict import VerdictStatus

if TYPE_CHECKING:
    from dumps.store.run_data import RunData


@click.command()
@sides(required=False)
@run_options(NOISE_RUNS)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.html, report.md and report.json; align-report by default, none with "
    "--json alone.",
)
@click.option(
    "--from",
    "from_json",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the report again from this report.json; REF and CAND are not read.",
)
@lang_option
@fail_on_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    reference: Path | None,
    candidate: Path | None,
    reference_files: tuple[Path, ...],
    candidate_files: tuple[Path, ...],
    out: Path | None,
    from_json: Path | None,
    lang: str,
    fail_on: str,
    as_json: bool,
    **further: tuple[Path, ...],
) -> None:
    """Compare run CAND (under test) with run REF (trusted) and write the report.

    REF and CAND are run folders or single files: console logs, metrics, configurations, rollout
    dumps. What a file is for is found out from its content. The report names the link of the
    training chain that breaks first, or says what has to be recorded to know.
    """
    if from_json is not None:
        report = read_report(from_json)
    elif reference is None or candidate is None:
        raise click.UsageError("give REF and CAND, or --from report.json", ctx)
    else:
        report = compare_runs(reference, candidate, reference_files, candidate_files, **further)
    if out is None and not as_json:
        out = Path("align-report")
    present(report, out, lang, as_json)
    if report.verdict.status is VerdictStatus.NOT_COMPARABLE:
        ctx.exit(ExitCode.NOT_COMPARABLE)
    ctx.exit(exit_code((f for rung in report.rungs for f in rung.findings), fail_on))


def compare_runs(
    reference: Path,
    candidate: Path,
    reference_files: tuple[Path, ...] = (),
    candidate_files: tuple[Path, ...] = (),
    **further: tuple[Path, ...],
) -> Report:
    """Discover, read and compare two runs, with a progress bar on a terminal.

    Args:
        further: ``noise`` and ``referee``, the runs that layers' limits are taken from.
    """
    from align.ladder import climb

    runs = find_run(reference, reference_files), find_run(candidate, candidate_files)
    more = {name: [find_run(path, ()) for path in paths] for name, paths in further.items()}
    everything = (*runs, *(run for each in more.values() for run in each))
    with progress_bar(sum(map(size_bytes, everything))) as bar:
        ours, theirs = (load(run, bar.advance) for run in runs)
        others = {name: [load(run, bar.advance) for run in each] for name, each in more.items()}
        report = climb(ours, theirs, on_rung=lambda rung: bar.stage(rung.value), **others)
    return replace(report, next_run=_next_run(report, ours, theirs))


def _next_run(report: Report, reference: RunData, candidate: RunData) -> NextRun | None:
    """Return the cheapest experiment that tells more, None where there is none to run."""
    from align.next.choose import choose
    from align.next.commands import side_of
    from align.next.situation import situation_of

    situation = situation_of(report, reference, candidate)
    advice = choose(situation, side_of(reference), side_of(candidate))
    if advice.chosen is None:
        return None
    plan = advice.chosen.plan
    return NextRun(plan.title, plan.why, advice.chosen.commands, advice.note)


def compare_quietly(reference: Path, candidate: Path) -> Report:
    """Discover, read and compare two runs without a word; for worker processes."""
    from align.ladder import climb

    return climb(
        *(load(find_run(path, ()), lambda num_bytes: None) for path in (reference, candidate))
    )


def compare_logs_quietly(reference: Path, candidate: Path) -> Report:
    """Compare what most users have of two run folders of the stack: logs and configurations."""
    from align.ladder import climb

    runs = [
        find_run(path / "console.log", (path / "metrics.jsonl", path / "model"))
        for path in (reference, candidate)
    ]
    return climb(*(load(run, lambda num_bytes: None) for run in runs))


def read_report(path: Path) -> Report:
    """Read a report.json.

    Raises:
        DocumentError: It cannot be read or is not a report document.
    """
    from align.core.document import from_document

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DocumentError(
            where=str(path),
            problem=f"cannot be read as JSON ({error})",
            fix="give the report.json that `align report` wrote",
        ) from error
    if not isinstance(document, Mapping):
        raise DocumentError(
            where=str(path),
            problem="is not a report document",
            fix="give the report.json that `align report` wrote",
        )
    return from_document(document, where=str(path))


def present(report: Report, out: Path | None, lang: str, as_json: bool) -> None:
    """Write the three files into ``out``; say on stderr where they are and what they say."""
    from align.core.document import to_document
    from reports.render.json import render
    from reports.write import write_report

    document: dict[str, Any] = to_document(report)
    if as_json:
        click.echo(render(document), nl=False)
    verdict = report.verdict
    click.echo(f"verdict: {verdict.status.value}: {verdict.sentence.in_language(lang)}", err=True)
    for label, text in (("fix", verdict.fix), ("next", verdict.next_step)):
        if text is not None:
            click.echo(f"{label}: {text.in_language(lang)}", err=True)
    if out is not None:
        click.echo(f"report: {write_report(document, out, lang).html}", err=True)
