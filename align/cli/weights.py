"""``align weights``: do two checkpoints hold the same weights, and in which layout."""

from __future__ import annotations

from importlib import import_module

import click


class _Commands(click.Group):
    """Subcommands imported when they are called: converting needs torch, --help does not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["diff", "convert"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = import_module(f"align.cli.weights_{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands)
def command() -> None:
    """Compare and convert checkpoints, Hugging Face and Megatron."""
