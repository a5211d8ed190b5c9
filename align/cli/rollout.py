"""``align rollout``: what the models answered."""

from __future__ import annotations

import click

from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Compare what the models answered."""


command.add_command(
    diff_command(
        "align.rollout.rung",
        "Compare counts, lengths and scores per step, responses paired by prompt text.",
    )
)
