"""``align curves``: metrics over steps."""

from __future__ import annotations

import click

from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Compare metrics over steps."""


command.add_command(
    diff_command(
        "align.curves.rung",
        "Say which metrics part, from which step on, and whether the reward is accepted.",
    )
)
