"""``align data``: the rows each step trains on."""

from __future__ import annotations

import click

from align.cli.order import order
from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Compare and predict the rows each step trains on."""


command.add_command(
    diff_command(
        "align.ladder",
        "Say whether both runs train on the same prompts in the same order, step by step.",
        function="compare_data",
    )
)
command.add_command(order)
