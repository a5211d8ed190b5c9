"""``align demo``: the main job on two small recorded runs."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import lang_option
from align.cli.report import compare_runs, present
from align.core.errors import RunError

EXAMPLES = Path(__file__).parents[1] / "examples"


@click.command()
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-report"),
    show_default=True,
    help="Folder for the report.",
)
@lang_option
def command(out: Path, lang: str) -> None:
    """Report on two real GRPO runs of verl 0.9.1, the second with one setting migrated wrongly."""
    if not EXAMPLES.is_dir():
        raise RunError(
            where=str(EXAMPLES),
            problem="the example runs are not part of this installation",
            fix="run `make demo` in a checkout of the repository",
        )
    report = compare_runs(EXAMPLES / "reference", EXAMPLES / "candidate")
    present(report, out, lang, as_json=False)
