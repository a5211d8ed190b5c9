"""``align layers diff --all-steps``: every recorded step, on this machine or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from align.core.rung import RungResult
    from dumps.store.run_data import RunData

Command = TypeVar("Command", bound=Callable[..., Any])

_PROCESSES = 2


def step_options(function: Command) -> Command:
    """Add the options of this mode."""
    function = click.option(
        "--ray",
        metavar="ADDRESS",
        help="Compare every step on a Ray cluster: its address, or auto on one of its nodes.",
    )(function)
    return click.option(
        "--all-steps",
        is_flag=True,
        help="Compare every step both runs recorded: where and when errors depart first.",
    )(function)


def no_options(function: Command) -> Command:
    """Add nothing."""
    return function


def diff_steps(
    reference: RunData, candidate: RunData, ray: str | None, *, takes_noise: bool
) -> RungResult:
    """Compare every step of two runs.

    Args:
        ray: address of a cluster.
        takes_noise: no runs were given to measure noise on, which this mode does not use.
    """
    from align.layers.all_steps import common_files, compare_steps
    from align.layers.all_steps_rung import result_of
    from align.layers.spread import on_ray, on_this_machine

    if not takes_noise:
        raise click.UsageError("--noise and --referee are for one step: leave out --all-steps")
    files = common_files(reference, candidate)
    with on_ray(ray) if ray else on_this_machine(len(files), _PROCESSES) as spread:
        found, problems = compare_steps(files, spread)
    reference.problems += problems
    return result_of(found, reference.run.label, candidate.run.label)
