"""``align tokenizer``: how text becomes ids on both sides."""

from __future__ import annotations

import click

from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Compare the tokenizers."""


command.add_command(
    diff_command(
        "tokenizer_check.rung",
        "Compare special tokens, ends of responses, sizes, content and rendered templates.",
        with_tables=True,
    )
)
