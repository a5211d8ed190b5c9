"""``align config``: what the two configurations really do."""

from __future__ import annotations

import click

from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Compare what the two configurations really do."""


command.add_command(
    diff_command(
        "align.config.rung",
        "Compare effective values, worst difference first: defaults and units are resolved.",
    )
)
