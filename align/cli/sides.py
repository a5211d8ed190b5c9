"""The two runs as a command takes them: paths in, loaded runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from align.cli.run_place import RunPlace
from align.core.errors import RunError

if TYPE_CHECKING:
    from align.core.run import Run
    from dumps.store.run_data import RunData

Command = TypeVar("Command", bound=Callable[..., Any])

_PLACE = RunPlace()


def sides(*, required: bool = True) -> Callable[[Command], Command]:
    """Add REF and CAND, and options that add further files to either side.

    A path's content decides what it is for, so one option serves logs, configs and dumps alike.
    """

    def decorate(function: Command) -> Command:
        for name, side in (("candidate", "CAND"), ("reference", "REF")):
            function = click.option(
                f"--{name}-file",
                f"{name}_files",
                type=_PLACE,
                multiple=True,
                help=f"A further log, config or dump of {side}; may be repeated.",
            )(function)
        for name, metavar in (("candidate", "CAND"), ("reference", "REF")):
            function = click.argument(name, type=_PLACE, metavar=metavar, required=required)(
                function
            )
        return function

    return decorate


def find_run(path: Path, further: Sequence[Path]) -> Run:
    """Discover one side.

    Raises:
        RunError: No file of it is of a known format; the message says what the files are.
    """
    from dumps.store.discover import discover

    run = discover([path, *further])
    if not run.artifacts:
        strangers = "; ".join(f"{file.path}: {file.looks_like}" for file in run.unknown[:5])
        raise RunError(
            where=str(path),
            problem=f"holds nothing this program reads ({strangers or 'no file at all'})",
            fix="give a console log, metrics, configuration or rollout dump, unpacked",
        )
    return run


def size_bytes(run: Run) -> int:
    """Return how many bytes the readers will go through."""
    return sum(artifact.size_bytes for artifact in run.artifacts)


def load(run: Run, progress: Callable[[int], None]) -> RunData:
    """Return the lazy contents of a run."""
    from dumps.store.run_data import RunData

    return RunData(run, progress)
