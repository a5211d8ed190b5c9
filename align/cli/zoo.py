"""``align zoo``: how often the report is right, on faults that are known."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from align.cli.options import json_option
from align.cli.progress import count_bar
from align.cli.report import compare_logs_quietly, compare_quietly
from align.core.optional import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from align.stack.zoo import Outcome


@click.command()
@click.option("--only", multiple=True, help="A fault, or clean:NAME; may be repeated.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the runs here; without it they are removed at the end.",
)
@click.option("--resume", is_flag=True, help="Use finished runs in -o that the same code made.")
@click.option(
    "--evidence",
    type=click.Choice(["all", "logs"]),
    default="all",
    show_default=True,
    help="What the reports are made of; logs: console log, metrics and configurations alone.",
)
@click.option(
    "--write-docs",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the table into this document, such as docs/accuracy.md.",
)
@json_option
def command(
    only: tuple[str, ...],
    jobs: int,
    out: Path | None,
    resume: bool,
    evidence: str,
    write_docs: Path | None,
    as_json: bool,
) -> None:
    """Plant every known fault, train, and count how often the report names it first.

    Clean pairs, which differ in noise alone, count the false alarms. About 20 minutes on two cores.
    """
    require("torch", extra="torch")
    require("transformers", extra="torch")
    from align.stack.accuracy import headline, headline_of_logs, to_document

    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="align-zoo-")))
        outcomes = _run(only, folder, jobs, resume, evidence)
    if write_docs is not None:
        _write_docs(write_docs, outcomes, evidence)
    if as_json:
        click.echo(json.dumps(to_document(outcomes), indent=2, ensure_ascii=False))
    else:
        click.echo(_table(outcomes))
    said = headline if evidence == "all" else headline_of_logs
    click.echo(said(outcomes), err=True)


def _run(
    only: Sequence[str], folder: Path, jobs: int, resume: bool, evidence: str
) -> list[Outcome]:
    from align.stack.zoo import forget_runs, run_zoo, trials

    chosen = trials(only)
    if not resume:
        forget_runs(folder)
    with count_bar() as bar:
        return run_zoo(
            chosen,
            folder,
            compare_quietly if evidence == "all" else compare_logs_quietly,
            jobs=jobs,
            on_start=bar.total,
            on_done=bar.done,
        )


def _table(outcomes: Sequence[Outcome]) -> str:
    rows = [("rung", "fault", "must be named", "was named", "right")]
    for o in outcomes:
        right = "no effect" if o.is_fault and not o.acts else "yes" if o.right else "no"
        rows.append(
            (o.rung or "clean", o.name, o.expected or "-", o.problem or o.reported or "-", right)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = (zip(row, widths, strict=True) for row in rows)
    return "\n".join("  ".join(c.ljust(w) for c, w in row).rstrip() for row in cells)


def _write_docs(path: Path, outcomes: Sequence[Outcome], evidence: str) -> None:
    import subprocess
    from datetime import datetime, timezone

    from align import __version__
    from align.stack.accuracy import LOGS, ZOO, markdown, markdown_of_logs, write_section

    try:
        here = str(Path(__file__).parent)
        words = ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
        commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = f"unknown (version {__version__})"
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    section, write = (ZOO, markdown) if evidence == "all" else (LOGS, markdown_of_logs)
    write_section(path, section, write(outcomes, date=date, commit=commit))
