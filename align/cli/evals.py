"""``align evals``: benchmark results of both models."""

from __future__ import annotations

import click

from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Compare benchmark results."""


command.add_command(
    diff_command(
        "align.evals.rung",
        "Compare scores with their sampling error, against 1 % (same weights) and 2 % (trained). "
        "Reads lm-eval, evalscope, OpenCompass, AISBench tables and CSV; one table with a row a "
        "device can be both sides.",
    )
)
