"""``align tokenizer``: what ends, pads and begins a text on both sides."""

from __future__ import annotations

import click

from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Compare the tokenizers' special tokens."""


command.add_command(
    diff_command(
        "tokenizer_check.rung",
        "Compare eos, pad, bos and unk as the tokenizer folders and config.json state them.",
    )
)
