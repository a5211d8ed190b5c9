"""``align layers``: where activations first differ."""

from __future__ import annotations

import click

from align.cli import layers_export, layers_isolate
from align.cli.rung_diff import diff_command

NOISE_RUNS = {
    "noise": "The reference again, as it was or with embeddings perturbed by one rounding: limits "
    "come from what these runs differ by. May be repeated.",
    "referee": "The same steps in float32 or float64: limits come from both runs' errors against "
    "it, and it says which of the two is wrong.",
}


@click.group()
def command() -> None:
    """Find the first module, gradient or update that differs beyond rounding."""


command.add_command(
    diff_command(
        "align.layers.forward_rung",
        "Compare activations from sketches; --all lists the error of every module. "
        "Two folders of msprobe dumps are compared tensor by tensor.",
        further_runs=NOISE_RUNS,
        takes_msprobe=True,
        takes_steps=True,
    )
)
command.add_command(
    diff_command(
        "align.ladder",
        "Compare gradients from sketches; --all lists the error of every gradient.",
        function="compare_gradients",
        further_runs=NOISE_RUNS,
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
command.add_command(layers_export.command)
command.add_command(layers_isolate.command)
