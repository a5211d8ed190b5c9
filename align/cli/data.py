"""``align data``: the rows each step trains on."""

from __future__ import annotations

import click

from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Compare the rows each step trains on."""


command.add_command(
    diff_command(
        "align.data.rung",
        "Say whether both runs train on the same prompts in the same order, step by step.",
    )
)
