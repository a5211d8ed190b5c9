"""``align layers``: where activations first differ."""

from __future__ import annotations

import click

from align.cli.rung_diff import diff_command


@click.group()
def command() -> None:
    """Find the first module, gradient or update that differs beyond rounding."""


command.add_command(
    diff_command(
        "align.layers.forward_rung",
        "Compare activations from sketches; --all lists the error of every module.",
    )
)
command.add_command(
    diff_command(
        "align.ladder",
        "Compare gradients from sketches; --all lists the error of every gradient.",
        function="compare_gradients",
    ),
    "gradients",
)
command.add_command(
    diff_command(
        "align.layers.weight_sync_rung",
        "Compare the rollout engine's weights with the trainer's, in each run by itself.",
    ),
    "sync",
)
