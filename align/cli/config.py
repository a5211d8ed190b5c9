"""``align config``: what the two configurations really do."""

from __future__ import annotations

import click

from align.cli.config_diff import diff
from align.cli.config_explain import explain
from align.cli.config_translate import translate


@click.group()
def command() -> None:
    """Compare what the two configurations really do."""


command.add_command(diff)
command.add_command(explain)
command.add_command(translate)
